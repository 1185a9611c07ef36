#!/usr/bin/env bash
# Runs the tests of flex that use threads under ThreadSanitizer, with an instrumented standard library (without one
# it reports races that are none). Needs a nightly toolchain and the standard library's source of the same version:
# the toolchain's own rust-src component, or Debian's rust-src package, which is fetched through apt into the
# package cache without touching the system. Skips nothing: what is missing is an error that says so.
set -euo pipefail
. "$(dirname "$0")/common.sh"
. scripts/debian.sh

nightly=${TSAN_TOOLCHAIN:-nightly}
target=x86_64-unknown-linux-gnu
tests=(--test allocator --test callback_threads --test gate --test regions)

[ "$(uname -sm)" = "Linux x86_64" ] || die "ThreadSanitizer runs here on x86-64 Linux only, this is $(uname -sm)"
rustc=$(rustc "+$nightly" --version 2>/dev/null) ||
    die "no $nightly toolchain; install it with: rustup toolchain install $nightly"
version=$(printf '%s\n' "$rustc" | cut -d' ' -f2 | cut -d. -f1,2) # such as 1.97

# Puts the library's source of Rust $version from Debian sid into the folder $1.
fetch_library() {
    local destination=$1 state found apt=()
    otherwise="; run
    rustup component add rust-src --toolchain $nightly"
    mkdir -p "$cache"
    state=$(mktemp -d "$cache/rust-src.XXXXXX")
    # shellcheck disable=SC2064
    trap "rm -rf '$state'" EXIT
    mkdir "$state/unpacked"
    debian_archive "$state" deb sid
    found=$(debian_version rust-src "$version.")
    [ -n "$found" ] || die "Debian sid has no rust-src $version, the toolchain $nightly is $rustc$otherwise
or set TSAN_TOOLCHAIN to a nightly toolchain of a version that it has"
    (cd "$state" && apt-get "${apt[@]}" download "rust-src=$found") || die "apt cannot fetch rust-src $found"
    dpkg-deb --fsys-tarfile "$state"/rust-src_*.deb | tar -x -C "$state/unpacked" --wildcards './usr/src/*/library'
    # Complete, or not there: the folder appears by rename.
    mv -T "$state"/unpacked/usr/src/*/library "$destination" 2>/dev/null ||
        [ -e "$destination/Cargo.lock" ] || die "the package rust-src $found has no library"
    rm -rf "$state"
    trap - EXIT
}

library=$(rustc "+$nightly" --print sysroot)/lib/rustlib/src/rust/library
if [ -e "$library/Cargo.lock" ]; then
    unset __CARGO_TESTS_ONLY_SRC_ROOT
else
    library=$cache/rust-library-$version
    if [ ! -e "$library/Cargo.lock" ]; then
        say "Fetching the source of the standard library $version"
        fetch_library "$library"
    fi
    export __CARGO_TESTS_ONLY_SRC_ROOT=$library
fi

say "ThreadSanitizer: $rustc, standard library from $library"
export RUSTFLAGS="-Zsanitizer=thread"
export TSAN_OPTIONS="history_size=7 halt_on_error=1 suppressions=$root/scripts/tsan-suppressions.txt"
# Optimised a little: the instrumented code is slow enough for deadlines of tests without that.
export CARGO_PROFILE_DEV_OPT_LEVEL=1 CARGO_PROFILE_DEV_DEBUG=1
run() { cargo "+$nightly" test -Zbuild-std --target "$target" --target-dir target/tsan -p flex "$@"; }

# A sanitizer that finds nothing may be one that is not there: a test with a race must fail.
say "A race on purpose"
if output=$(run --test race_on_purpose -- --ignored 2>&1); then
    die "ThreadSanitizer did not see a race that is there"
fi
printf '%s\n' "$output" | grep -q 'WARNING: ThreadSanitizer: data race' || {
    printf '%s\n' "$output" | tail -n 40 >&2
    die "the race on purpose did not end with a report of ThreadSanitizer"
}

say "The tests"
run "${tests[@]}" -- "$@"
