#!/usr/bin/env bash
# Runs the Python tests on what $TORCH_SPYRE_VENV holds. Arguments go to pytest. LEAVE_OUT=compile leaves those out,
# PARTS="device ops" runs those alone.
#
# In several processes: the compiler, the operator database, collectives and whole programs load hundreds of thousands
# of objects and leave threads behind. The pressure scenarios, with their short deadlines, would have to live with that.
set -euo pipefail
. "$(dirname "$0")/common.sh"

apart=(compile distributed ops programs)
read -r -a parts <<<"${PARTS:-device ${apart[*]}}"
for part in "${parts[@]}"; do
    if [ "$part" = "${LEAVE_OUT:-}" ]; then continue; fi
    case " device ${apart[*]} " in
    *" $part "*) ;;
    *) die "unknown part $part of the Python tests: expected some of device ${apart[*]}" ;;
    esac
    say "Python tests: $part"
    tests=("tests/python/$part")
    if [ "$part" = device ]; then tests=(tests/python "${apart[@]/#/--ignore=tests/python/}"); fi
    status=0
    "$venv/bin/python" -m pytest "${tests[@]}" "$@" || status=$?
    # 5: nothing was selected. `-m pressure` selects in some only.
    if [ "$status" -ne 0 ] && { [ "$status" -ne 5 ] || [ "$part" = device ]; }; then exit "$status"; fi
done
