#!/usr/bin/env bash
# Runs the tests: the crates that need no Python, then the Python tests on the release build of the extension.
set -euo pipefail
. "$(dirname "$0")/common.sh"

say "Rust tests"
cargo test -- --quiet

scripts/python_tests.sh
