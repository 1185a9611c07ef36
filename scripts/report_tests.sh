#!/usr/bin/env bash
# Runs the tests of the report page in a headless Chromium (scripts/chromium.sh fetches one, once per machine).
# Arguments go to pytest; `images` draws the pictures of the documents instead, and `measure` prints what a report of
# many events costs.
set -euo pipefail
. "$(dirname "$0")/common.sh"

CHROMIUM=$(scripts/chromium.sh)
export CHROMIUM
# The tests take the build with debug checks, which `make test` has made already.
profile=dev folder=debug
if [ "${1:-}" = measure ]; then profile=release folder=release; fi
cargo build --quiet --profile "$profile" --package flexmem --bin flexmem --example synthetic_trace
export FLEXMEM=$CARGO_TARGET_DIR/$folder/flexmem
export SYNTHETIC_TRACE=$CARGO_TARGET_DIR/$folder/examples/synthetic_trace

case ${1:-} in
images) exec "$venv/bin/python" tests/report/screenshots.py ;;
measure) exec "$venv/bin/python" tests/report/measure.py ;;
*) exec "$venv/bin/python" -m pytest tests/report -q -p no:cacheprovider "$@" ;;
esac
