#!/usr/bin/env bash
# Runs the soak (tests/soak/soak.py) on the build with debug checks. SOAK_SECONDS=600 runs it longer, SEED=7
# repeats one. SOAK_PYTHON and SOAK_PACKAGE, an interpreter and the folder of a built torch_spyre, soak another build.
set -euo pipefail
. "$(dirname "$0")/common.sh"

python=${SOAK_PYTHON:-.venv/bin/python}
package=${SOAK_PACKAGE:-}
if [ -z "$package" ]; then
    scripts/extension.sh checked
    package=$root/target/checked/python
fi
options=(--seconds "${SOAK_SECONDS:-60}")
if [ -n "${SEED:-}" ]; then options+=(--seed "$SEED"); fi
PYTHONPATH=$package exec "$python" tests/soak/soak.py "${options[@]}"
