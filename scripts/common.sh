# shellcheck shell=bash
# What every script needs: where the checkout is, how to talk, and one set of build variables for all of them
# (a variable that differs between two cargo runs would rebuild the extension each time).
# To be sourced after `set -euo pipefail`.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 1

# In continuous integration with the time, to see from its output what takes long.
say() {
    if [ "${CI:-}" = true ]; then printf '==> [%(%T)T] %s\n' -1 "$*"; else printf '==> %s\n' "$*"; fi
}
die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# What is made once per machine and shared by all checkouts; environment.py keeps its packages there too.
# shellcheck disable=SC2034
cache=${TORCH_SPYRE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/torch-spyre}

# The checkout's environment, and cargo's folder for it. `make test-freethreaded` has both of its own.
export TORCH_SPYRE_VENV=${TORCH_SPYRE_VENV:-.venv}
venv=$root/$TORCH_SPYRE_VENV
export CARGO_TARGET_DIR=$root/target
if [ "$TORCH_SPYRE_VENV" != .venv ]; then CARGO_TARGET_DIR+=/${TORCH_SPYRE_VENV#.venv-}; fi

# The build finds Python and PyTorch in that environment, and builds inside the checkout.
export PYO3_PYTHON="$venv/bin/python"
export TORCH_SPYRE_PYTHON="$venv/bin/python"

# Without a terminal, logs are plain.
if [ ! -t 1 ]; then
    export CARGO_TERM_COLOR=never CARGO_TERM_PROGRESS_WHEN=never
fi

# Prints the first interpreter that is CPython 3.11 or later: $PYTHON alone if it is set.
find_python() {
    local candidate candidates=(python3 python3.14 python3.13 python3.12 python3.11)
    if [ -n "${PYTHON:-}" ]; then candidates=("$PYTHON"); fi # One path, which may have spaces in it.
    for candidate in "${candidates[@]}"; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            printf '%s\n' "$candidate"
            return 0
        fi
    done
    return 1
}
