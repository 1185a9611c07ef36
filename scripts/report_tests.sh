#!/usr/bin/env bash
# Runs the tests of the report page in a headless Chromium (scripts/chromium.sh fetches one, once per machine).
# Arguments go to pytest.
set -euo pipefail
. "$(dirname "$0")/common.sh"

CHROMIUM=$(scripts/chromium.sh)
export CHROMIUM
cargo build --quiet --package flexmem --bin flexmem --example synthetic_trace
export FLEXMEM=$CARGO_TARGET_DIR/debug/flexmem
export SYNTHETIC_TRACE=$CARGO_TARGET_DIR/debug/examples/synthetic_trace
exec "$venv/bin/python" -m pytest tests/report -q -p no:cacheprovider "$@"
