#!/usr/bin/env bash
# Removes what the other commands made in this checkout. The shared package cache stays, and is named.
set -euo pipefail
. "$(dirname "$0")/common.sh"

say "Removing target, .venv and its like, demo-output, the built extension and tool caches"
rm -rf target .venv .venv-* demo-output .pytest_cache .mypy_cache .ruff_cache
rm -f python/torch_spyre/_C.*.so
find python tests examples benches scripts -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
say "The Python packages, and a free-threaded interpreter, stay in $cache"
