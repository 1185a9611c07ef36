#!/usr/bin/env bash
# Everything that `make test` does not look at: formatting, lints, types, documentation, the models and
# ThreadSanitizer (docs/verification.md), and the pressure scenarios and the soak on a build of the extension with its
# debug checks on (a thread that attaches to Python while it holds an allocator mutex panics there).
set -euo pipefail
. "$(dirname "$0")/common.sh"

[ -x .venv/bin/ruff ] ||
    die "make check needs an interpreter with a GIL: .venv was made for a free-threaded one, which gets no such tools"

python_code=(python tests examples benches scripts)

say "Rust: format"
cargo fmt --all -- --check
cargo fmt --manifest-path fuzz/Cargo.toml -- --check
say "Rust: clippy"
cargo clippy --workspace --all-targets -- -D warnings
say "Rust: the benchmarks' own tests, and what flex shows them"
cargo test --quiet --package flex-benches
cargo test --quiet --package flex --features bench --lib bench
say "Rust: what the fuzz targets do, on the committed corpus (make fuzz lets libFuzzer go on from there)"
# Without libFuzzer, so without its C++ code: that leaves out the two lines that bind a target to it.
fuzz=(--manifest-path fuzz/Cargo.toml --target-dir target/fuzz --locked --no-default-features)
cargo clippy "${fuzz[@]}" --all-targets -- -D warnings
cargo test --quiet "${fuzz[@]}"
say "Rust: documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

say "Python: ruff"
.venv/bin/ruff check "${python_code[@]}"
.venv/bin/ruff format --check "${python_code[@]}"
say "Python: mypy"
.venv/bin/python -m mypy
.venv/bin/python -m mypy scripts
MYPYPATH=python:tests/soak .venv/bin/python -m mypy --explicit-package-bases tests/soak
MYPYPATH=tests/report .venv/bin/python -m mypy --explicit-package-bases tests/report
say "Python: the stubs of the extension"
MYPYPATH=python .venv/bin/python -m mypy.stubtest torch_spyre._C torch_spyre.flex \
    --allowlist scripts/stubtest-allowlist.txt --ignore-unused-allowlist

say "C++: clang-format"
find crates/torch-spyre/shim crates/flex-c/tests tests/python include \
    \( -name '*.c' -o -name '*.cpp' -o -name '*.hpp' -o -name '*.h' \) ! -path include/flex.h \
    -exec .venv/bin/clang-format --dry-run -Werror {} +

say "C: include/flex.h is what crates/flex-c exports (make header writes it)"
cargo test --quiet --package flex-c --test header

say "Mutants: every entry fits the sources (make mutants tries them)"
.venv/bin/python scripts/mutants.py --check-applies

say "Shell: shellcheck"
.venv/bin/shellcheck scripts/*.sh .ci/run

say "Documents: links, the length of lines, the table of scenarios, and examples in Rust"
.venv/bin/python scripts/check_links.py
.venv/bin/python scripts/scenarios.py
cargo build --package flex
rustdoc --edition 2024 --test docs/lock_ordering.md \
    -L dependency=target/debug/deps --extern flex=target/debug/libflex.rlib

say "Documents: the outputs of commands (make docs-examples writes them)"
.venv/bin/python scripts/doc_examples.py --check

scripts/models.sh
scripts/tsan.sh

say "Pressure scenarios with debug checks on"
scripts/extension.sh checked
checked=$root/target/checked/python
PYTHONPATH=$checked .venv/bin/python -c '
import sys, torch, torch_spyre
assert torch_spyre.__file__.startswith(sys.argv[1]), torch_spyre.__file__' "$checked"
PYTHONPATH=$checked scripts/python_tests.sh -m pressure -o pythonpath="$checked"

say "Soak"
scripts/soak.sh

say "All checks passed"
