#!/usr/bin/env bash
# Runs every sample of PyTorch's operator database on the device and compares with the CPU, and the other tests that
# PyTorch ships, and prints how many there were. On as many processes as there are processors: each takes a part of the
# tests. Arguments go to pytest.
set -euo pipefail
. "$(dirname "$0")/common.sh"

parts=$(nproc --all) # Without --all it looks at OMP_NUM_THREADS.
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
export OMP_NUM_THREADS=1 # The processes are enough.

say "Operators, in $parts parts"
pids=()
for ((part = 0; part < parts; part++)); do
    "$venv/bin/python" -m pytest tests/python/ops --all-samples --part "$part/$parts" --quiet "$@" \
        >"$logs/$part" 2>&1 &
    pids+=($!)
done
failed=0
for ((part = 0; part < parts; part++)); do
    wait "${pids[part]}" || failed=1
    sed -n '/^=\+ \(FAILURES\|ERRORS\) =/,/^=\+ operators compared/p; /^=\+ short test summary/,$p' "$logs/$part"
    tail -n 1 "$logs/$part"
done

say "Operators compared with CPU"
sed -n '/^=\+ operators compared/,/^=\+ [^o]/p' "$logs"/* |
    awk '/^ *[0-9]+ / && !/ in [0-9.]+s/ { count = $1; $1 = ""; sum[$0] += count }
         END { for (name in sum) printf "%8d%s\n", sum[name], name }' |
    sort -k 2
exit "$failed"
