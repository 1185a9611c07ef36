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
    # A free-threaded 3.13 is what PyTorch 2.12 has wheels for.
    "$python" -c 'import sys, sysconfig
sys.exit(bool(sysconfig.get_config_var("Py_GIL_DISABLED")) and sys.version_info[:2] != (3, 13))' ||
        lacks "a free-threaded interpreter of version 3.13 ($python is $("$python" --version))" \
            "make test-freethreaded, which builds one" "make PYTHON=python3.13t test"
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
