#!/usr/bin/env bash
# Checks that the tools are there which these scripts do not install themselves: Python, Rust, a C++20 compiler.
# Names every missing one together with the command that installs it.
set -euo pipefail
. "$(dirname "$0")/common.sh"

rust_needed=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
missing=0

# lacks WHAT DEBIAN-COMMAND MACOS-COMMAND
lacks() {
    missing=1
    {
        printf 'missing: %s\n' "$1"
        if [ "$(uname)" = Darwin ]; then printf '    install it with: %s\n' "$3"; else
            printf '    on Debian or Ubuntu: %s\n' "$2"
        fi
    } >&2
}

rustup="curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh"

if python=$(find_python); then
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        lacks "the venv module of $python" "sudo apt-get install python3-venv" "brew install python"
    if [ "$("$python" -c 'import sysconfig; print(sysconfig.get_config_var("Py_GIL_DISABLED") or 0)')" = 1 ]; then
        lacks "an interpreter with a GIL ($python is a free-threaded build, which is not supported yet)" \
            "make PYTHON=python3.12 …" "make PYTHON=python3.12 …"
    fi
elif [ -n "${PYTHON:-}" ]; then
    if found=$("$PYTHON" --version 2>&1); then found="is $found"; else found="does not run"; fi
    lacks "Python 3.11 or later (PYTHON=$PYTHON $found)" \
        "sudo apt-get install python3 python3-venv, or give PYTHON the path of another interpreter" \
        "brew install python, or give PYTHON the path of another interpreter"
else
    lacks "Python 3.11 or later (python3 is $(python3 --version 2>/dev/null || echo not there))" \
        "sudo apt-get install python3 python3-venv" "brew install python"
fi

if ! command -v cargo >/dev/null || ! command -v rustc >/dev/null; then
    lacks "Rust $rust_needed or later" "$rustup" "$rustup"
else
    rust=$(rustc --version | cut -d' ' -f2)
    if [ "$(printf '%s\n%s\n' "$rust_needed" "$rust" | sort -V | head -n 1)" != "$rust_needed" ]; then
        lacks "Rust $rust_needed or later (rustc is $rust)" "rustup update, or $rustup" "rustup update, or $rustup"
    fi
fi

cxx=${CXX:-c++}
if ! printf '#include <concepts>\nstatic_assert(std::integral<int>);\n' |
    $cxx -std=c++20 -x c++ -fsyntax-only - 2>/dev/null; then
    lacks "a C++20 compiler ($cxx does not compile C++20)" "sudo apt-get install g++" "xcode-select --install"
fi

[ "$missing" = 0 ] || die "install what is missing, then run the same command again"
