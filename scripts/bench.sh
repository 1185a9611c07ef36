#!/usr/bin/env bash
# The benchmarks: the allocator beside its peers (benches/allocator), what tensors cost over the CPU device, what a
# rescue costs, and what collections cost two ranks (benches/python). All put their ratios into target/bench, from where
# plots are drawn.
#
#   scripts/bench.sh              measure; FULL=1 plays all seeds, as the targets in docs/performance.md ask
#   scripts/bench.sh images       draw the plots of the last measurement into docs/images
#   scripts/bench.sh check        compare instruction counts with benches/baselines.json
#   scripts/bench.sh baseline     write benches/baselines.json anew
set -euo pipefail
. "$(dirname "$0")/common.sh"

if [ "${1:-run}" != images ]; then cargo build --quiet --release --package flex-benches; fi
benches=target/release/flex-benches

case "${1:-run}" in
run)
    if [ "${FULL:-}" = 1 ]; then "$benches" run --full; else "$benches" run; fi
    .venv/bin/python benches/python/overhead.py
    .venv/bin/python benches/python/stacks.py
    .venv/bin/python benches/python/pressure.py
    .venv/bin/python benches/python/planned.py
    .venv/bin/python benches/python/plots.py
    ;;
images) .venv/bin/python benches/python/plots.py docs/images ;;
check | baseline)
    command -v valgrind >/dev/null || die "instructions are counted by valgrind: install the package 'valgrind'"
    "$benches" "$1"
    ;;
*) die "usage: scripts/bench.sh [images|check|baseline]" ;;
esac
