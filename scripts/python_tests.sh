#!/usr/bin/env bash
# Runs the Python tests on what $TORCH_SPYRE_VENV holds. Arguments go to pytest. LEAVE_OUT=compile leaves those out.
#
# In several processes: the compiler, the operator database, collectives and whole programs load hundreds of thousands
# of objects and leave threads behind. The pressure scenarios, with their short deadlines, would have to live with that.
set -euo pipefail
. "$(dirname "$0")/common.sh"

apart=(compile distributed ops programs)
say "Python tests: the device"
"$venv/bin/python" -m pytest tests/python "${apart[@]/#/--ignore=tests/python/}" "$@"
for folder in "${apart[@]}"; do
    if [ "$folder" = "${LEAVE_OUT:-}" ]; then continue; fi
    say "Python tests: $folder"
    status=0
    "$venv/bin/python" -m pytest "tests/python/$folder" "$@" || status=$?
    # 5: nothing was selected. `-m pressure` selects in some only.
    if [ "$status" -ne 0 ] && [ "$status" -ne 5 ]; then exit "$status"; fi
done
