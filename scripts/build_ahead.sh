#!/usr/bin/env bash
# Builds what `make test-freethreaded` and `make check` will need, so that they find it: continuous integration runs
# this beside the tests of `make test`, most of which leave a processor idle. Needs `make setup`. Each build has a
# folder of its own under target/, apart from the one that the tests use.
set -euo pipefail
. "$(dirname "$0")/common.sh"

# In a process of its own: it uses other variables than what comes after.
say "Building ahead: for the free-threaded CPython"
(
    PYTHON=$(scripts/freethreaded_python.sh)
    export PYTHON TORCH_SPYRE_VENV=.venv-freethreaded
    scripts/setup.sh
)
say "Building ahead: the models"
BUILD_ONLY=1 scripts/models.sh
say "Building ahead: for ThreadSanitizer"
BUILD_ONLY=1 scripts/tsan.sh
say "Building ahead: the extension with debug checks"
scripts/extension.sh checked
