#!/usr/bin/env bash
# Runs the pressure scenarios again and again, with fewer rounds of stress and shorter collections, and stops at the
# first failure with its log.
#
#   repeat.sh [COUNT [PYTEST ARGUMENT...]]        100 times; .venv/bin/python unless REPEAT_PYTHON names another
set -euo pipefail
. "$(dirname "$0")/common.sh"

count=${1:-100}
if [ $# -gt 0 ]; then shift; fi
python=${REPEAT_PYTHON:-.venv/bin/python}
mkdir -p target
log=target/repeat-$$.log # Runs at the same time have one each.
began=$SECONDS
for ((pass = 1; pass <= count; pass++)); do
    # A hang ends the run too: each test has a watchdog.
    if ! "$python" -m pytest tests/python/pressure --quick -q "$@" >"$log" 2>&1; then
        cat "$log"
        die "pass $pass of $count failed; the log is in $log"
    fi
    say "pass $pass of $count: $(tail -n 1 "$log"); $((SECONDS - began)) s so far"
done
rm -f "$log"
