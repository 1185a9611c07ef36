#!/usr/bin/env bash
# Runs the loom models and the shuttle schedules of flex, with the bounds of docs/verification.md.
# FLEX_MORE_PREEMPTIONS=1 goes deeper with loom, FLEX_SCHEDULES=50000 runs more schedules of each kind,
# FLEX_SEED=1 others. BUILD_ONLY=1 builds them and runs none.
set -euo pipefail
. "$(dirname "$0")/common.sh"

# check CHECKER FILTER: the unit tests of flex whose names contain FILTER, built for CHECKER.
check() {
    local log=target/$1/log
    mkdir -p "target/$1"
    local cargo=(cargo test --profile checked --target-dir "target/$1" -p flex --lib)
    local -x RUSTFLAGS="--cfg $1 -D warnings"
    if [ "${BUILD_ONLY:-}" = 1 ]; then
        "${cargo[@]}" --no-run
        return
    fi
    "${cargo[@]}" -- --nocapture "$2" 2>&1 | tee "$log"
    # A filter that matches nothing would pass.
    if grep -q '^running 0 tests' "$log"; then die "$1 found no tests named $2"; fi
}

say "loom: models of the pending list, the guard and the gate"
check loom models::
say "shuttle: schedules of the whole ladder"
check shuttle schedules::
