#!/usr/bin/env bash
# Runs the Python tests on what $TORCH_SPYRE_VENV holds. Arguments go to pytest. LEAVE_OUT=compile leaves those out,
# PARTS="device ops" runs those alone.
#
# In several processes: the compiler, the operator database, collectives and whole programs load hundreds of thousands
# of objects and leave threads behind. The pressure scenarios, with their short deadlines, would have to live with that;
# they run first and alone, the others two at a time.
set -euo pipefail
. "$(dirname "$0")/common.sh"

apart=(ops compile distributed programs)
read -r -a parts <<<"${PARTS:-device ${apart[*]}}"
jobs=() # What runs apart, longest first.
for part in "${parts[@]}"; do
    if [ "$part" = "${LEAVE_OUT:-}" ]; then continue; fi
    case $part in
    device) ;;
    ops) jobs+=("tests/python/ops/test_opinfo.py" "tests/python/ops --ignore=tests/python/ops/test_opinfo.py") ;;
    compile | distributed | programs) jobs+=("tests/python/$part") ;;
    *) die "unknown part $part of the Python tests: expected some of device ${apart[*]}" ;;
    esac
done

case " ${parts[*]} " in
*" device "*)
    say "Python tests: the device"
    "$venv/bin/python" -m pytest tests/python "${apart[@]/#/--ignore=tests/python/}" "$@"
    ;;
esac

logs=$(mktemp -d)
trap 'jobs -p | xargs -r kill 2>/dev/null || true; rm -rf "$logs"' EXIT

# What a job writes is shown when it has ended.
run_job() {
    local job=$1 log=$2 status=0 paths
    shift 2
    read -ra paths <<<"$job"
    # Small operators, thousands of them: threads would only be in each other's way.
    case $job in tests/python/ops*) export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} ;; esac
    "$venv/bin/python" -m pytest "${paths[@]}" "$@" >"$log" 2>&1 || status=$?
    # 5: nothing was selected. `-m pressure` selects in some only.
    if [ "$status" -eq 5 ]; then status=0; fi
    say "Python tests: $job"
    cat "$log"
    return "$status"
}

running=0 failed=0
for index in "${!jobs[@]}"; do
    if [ "$running" -eq 2 ]; then
        wait -n || failed=1
        running=$((running - 1))
    fi
    run_job "${jobs[index]}" "$logs/$index" "$@" &
    running=$((running + 1))
done
while [ "$running" -gt 0 ]; do
    wait -n || failed=1
    running=$((running - 1))
done
exit "$failed"
