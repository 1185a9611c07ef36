#!/usr/bin/env bash
# Runs the Python tests on a free-threaded CPython. Sets up what that needs, apart from what the other commands use:
# an interpreter in the package cache (or $FREETHREADED_PYTHON), .venv-freethreaded, target/freethreaded, and a build of
# the extension beside the other one. Arguments go to pytest.
set -euo pipefail
export TORCH_SPYRE_VENV=.venv-freethreaded
. "$(dirname "$0")/common.sh"

PYTHON=$(scripts/freethreaded_python.sh)
export PYTHON
scripts/setup.sh

"$venv/bin/python" -c 'import sys; sys.exit(sys._is_gil_enabled())' || die "$PYTHON runs with a GIL"
# Continuous integration leaves out what takes eight minutes and tests the Inductor of an older PyTorch.
if [ "${CI:-}" = true ]; then export LEAVE_OUT=compile; fi
scripts/python_tests.sh "$@"
