#!/usr/bin/env bash
# Runs the Python tests on what $TORCH_SPYRE_VENV holds. Arguments go to pytest. LEAVE_OUT=compile leaves those out.
#
# In several processes: the compiler, the operator database, collectives and whole programs load hundreds of thousands
# of objects and leave threads behind. The pressure scenarios, with their short deadlines, would have to live with that;
# they run first and alone, the others two at a time.
set -euo pipefail
. "$(dirname "$0")/common.sh"

apart=(compile distributed ops programs)
# Longest first.
parts=(
    "tests/python/ops/test_opinfo.py"
    "tests/python/compile"
    "tests/python/ops --ignore=tests/python/ops/test_opinfo.py"
    "tests/python/distributed"
    "tests/python/programs"
)

say "Python tests: the device"
"$venv/bin/python" -m pytest tests/python "${apart[@]/#/--ignore=tests/python/}" "$@"

logs=$(mktemp -d)
trap 'jobs -p | xargs -r kill 2>/dev/null || true; rm -rf "$logs"' EXIT

# What a part writes is shown when it has ended.
run_part() {
    local part=$1 log=$2 status=0 paths
    shift 2
    read -ra paths <<<"$part"
    # Small operators, thousands of them: threads would only be in each other's way.
    case $part in tests/python/ops*) export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} ;; esac
    "$venv/bin/python" -m pytest "${paths[@]}" "$@" >"$log" 2>&1 || status=$?
    # 5: nothing was selected. `-m pressure` selects in some only.
    if [ "$status" -eq 5 ]; then status=0; fi
    say "Python tests: $part"
    cat "$log"
    return "$status"
}

running=0 failed=0
for index in "${!parts[@]}"; do
    if [ -n "${LEAVE_OUT:-}" ] && [ "${parts[index]}" = "tests/python/$LEAVE_OUT" ]; then continue; fi
    if [ "$running" -eq 2 ]; then
        wait -n || failed=1
        running=$((running - 1))
    fi
    run_part "${parts[index]}" "$logs/$index" "$@" &
    running=$((running + 1))
done
while [ "$running" -gt 0 ]; do
    wait -n || failed=1
    running=$((running - 1))
done
exit "$failed"
