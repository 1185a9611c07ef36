#!/usr/bin/env bash
# Builds the extension for other versions of PyTorch and runs the Python tests on each: versions.sh [2.14 …], all of
# requirements/torch-*.txt unless some are named. Arguments behind `--` go to pytest, PARTS="device ops" runs those
# parts of scripts/python_tests.sh alone.
#
# Each version is apart from everything else: .venv-torch-2.14, target/torch-2.14 with a copy of the Python package,
# and 2 GB of packages in the package cache. REMOVE=1 takes these away again when its tests have passed.
set -euo pipefail
. "$(dirname "$0")/common.sh"

known=()
for file in requirements/torch-*.txt; do
    file=${file##*/torch-}
    known+=("${file%.txt}")
done
versions=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    [ -e "requirements/torch-$1.txt" ] || die "unknown version $1 of PyTorch: expected one of ${known[*]}"
    versions+=("$1")
    shift
done
shift $(($# > 0)) # The `--`.
if [ ${#versions[@]} = 0 ]; then versions=("${known[@]}"); fi

# test_version VERSION PYTEST-ARGUMENTS…: in the environment that common.sh finds through the two variables.
test_version() {
    local version=$1
    export TORCH_SPYRE_TORCH=$version TORCH_SPYRE_VENV=.venv-torch-$version
    shift
    say "PyTorch $version"
    scripts/setup.sh
    "$root/$TORCH_SPYRE_VENV/bin/python" -c '
import sys, torch, torch_spyre
assert torch.__version__.startswith(sys.argv[1] + "."), torch.__version__
print("PyTorch", torch.__version__, "with", torch_spyre.__file__)' "$version"
    scripts/python_tests.sh "$@"
}

for version in "${versions[@]}"; do
    # A process of its own, but no `if`: that would take `set -e` away inside.
    (test_version "$version" "$@")
    if [ "${REMOVE:-}" = 1 ]; then
        deps=$(head -n 1 ".venv-torch-$version/made-for")
        rm -rf ".venv-torch-$version" "target/torch-$version" "$deps"
    fi
done
