#!/usr/bin/env bash
# Runs the tests of flex, and those of flex-c in Rust, under ThreadSanitizer, with an instrumented standard library
# (without one it reports races that are none). Builds with the toolchain that rust-toolchain.toml pins, whose unstable
# options RUSTC_BOOTSTRAP admits, and the library's source of that version; if that is nowhere, with a nightly toolchain
# and its source. TSAN_TOOLCHAIN names the one to use. Skips nothing: what is missing is an error that says so.
# BUILD_ONLY=1 builds the tests and runs none.
set -euo pipefail
. "$(dirname "$0")/common.sh"
. scripts/debian.sh
. scripts/rust_library.sh

target=x86_64-unknown-linux-gnu
pinned=$(sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)

[ "$(uname -sm)" = "Linux x86_64" ] || die "ThreadSanitizer runs here on x86-64 Linux only, this is $(uname -sm)"
# A machine may set a variable for its own builds that replaces the library's source.
unset __CARGO_TESTS_ONLY_SRC_ROOT

toolchain='' library=''
for candidate in ${TSAN_TOOLCHAIN:-"$pinned" nightly}; do
    if [ -n "$(rust_version "$candidate")" ] && library=$(rust_library "$candidate"); then
        toolchain=$candidate
        break
    fi
done
[ -n "$toolchain" ] || die "no source of the standard library for ${TSAN_TOOLCHAIN:-$pinned or nightly}; with rustup:
    rustup component add rust-src --toolchain ${TSAN_TOOLCHAIN:-$pinned}"

say "ThreadSanitizer: $(rustc "+$toolchain" --version), standard library from $library"
export RUSTC_BOOTSTRAP=1 __CARGO_TESTS_ONLY_SRC_ROOT=$library
export RUSTFLAGS="-Zsanitizer=thread"
export TSAN_OPTIONS="history_size=7 halt_on_error=1 suppressions=$root/scripts/tsan-suppressions.txt"
# Optimised a little: the instrumented code is slow enough for deadlines of tests without that.
export CARGO_PROFILE_DEV_OPT_LEVEL=1 CARGO_PROFILE_DEV_DEBUG=1
run() { cargo "+$toolchain" test -Zbuild-std --target "$target" --target-dir target/tsan "$@"; }

# All but those that run a compiler, and the race.
tests=(--lib)
for file in crates/flex/tests/*.rs; do
    name=$(basename "$file" .rs)
    case $name in compile_fail | race_on_purpose) ;; *) tests+=(--test "$name") ;; esac
done

if [ "${BUILD_ONLY:-}" = 1 ]; then
    run -p flex --test race_on_purpose "${tests[@]}" --no-run
    run -p flex-c --lib --test program_memory --no-run
    exit
fi

# A sanitizer that finds nothing may be one that is not there: a test with a race must fail.
say "A race on purpose"
if output=$(run -p flex --test race_on_purpose -- --ignored 2>&1); then
    die "ThreadSanitizer did not see a race that is there"
fi
printf '%s\n' "$output" | grep -q 'WARNING: ThreadSanitizer: data race' || {
    printf '%s\n' "$output" | tail -n 40 >&2
    die "the race on purpose did not end with a report of ThreadSanitizer"
}

say "The tests"
run -p flex "${tests[@]}" -- "$@"
run -p flex-c --lib --test program_memory -- "$@"
