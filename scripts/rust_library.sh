# shellcheck shell=bash
# The source of Rust's standard library, for builds that instrument it. To be sourced after common.sh and debian.sh.
#
# It must be of the compiler's version. rustup's component `rust-src` is, but not every machine can add components; so
# it is also taken from Debian's package of that name and kept in the package cache, by version.

# The package for the toolchain that rust-toolchain.toml pins, by place and content: a newer version in Debian's suites
# changes nothing as long as it is there. Debian takes old versions out of the pool; then the suites are searched, and
# if none has the version, the caller says what to install. To be changed with the toolchain.
pinned_library_version=1.95
pinned_library_package=pool/main/r/rustc/rust-src_1.95.0+dfsg1-2~bpo13+1_all.deb
pinned_library_sha256=7b76db5b880a77f9e52975d2baa6209d2f76d2c9c2789515c3088cb960e2c83b

# Where any other version is looked for, and the pinned one when it has left its place.
library_suites=(trixie-backports testing sid experimental)

# Prints the minor version of the toolchain $1, such as 1.95.
rust_version() { rustc "+$1" --version 2>/dev/null | cut -d' ' -f2 | cut -d. -f1,2; }

# Prints the folder with the library's source for the toolchain $1, fetching it if need be.
rust_library() {
    local toolchain=$1 version component cached
    version=$(rust_version "$toolchain")
    component=$(rustc "+$toolchain" --print sysroot)/lib/rustlib/src/rust/library
    cached=${TORCH_SPYRE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/torch-spyre}/rust-library-$version
    if [ -e "$component/Cargo.lock" ]; then
        printf '%s\n' "$component"
    elif [ -e "$cached/Cargo.lock" ] || fetch_library "$version" "$cached"; then
        printf '%s\n' "$cached"
    else
        return 1
    fi
}

# Puts the library's source of Rust $1 into the folder $2. Complete, or not there: the folder appears by rename. In a
# subshell, for its trap.
fetch_library() (
    version=$1 destination=$2
    debian_available || {
        say "This machine has no Debian mirror, or not Debian's keys or tools"
        exit 1
    } >&2
    mkdir -p "$(dirname "$destination")"
    state=$(mktemp -d "$destination.XXXXXX")
    trap 'rm -rf "$state"' EXIT
    say "Fetching the source of Rust's standard library $version" >&2
    { fetch_pinned_library "$version" "$state" || fetch_suite_library "$version" "$state"; } >&2 || exit 1
    mkdir "$state/unpacked"
    dpkg-deb --fsys-tarfile "$state/rust-src.deb" |
        tar -x -C "$state/unpacked" --wildcards './usr/src/*/library' || exit 1
    # Another run's, if it is there by now.
    mv -T "$state"/unpacked/usr/src/*/library "$destination" 2>/dev/null || [ -e "$destination/Cargo.lock" ]
)

# Puts the package for Rust $1, if it is the pinned version, into the folder $2.
fetch_pinned_library() {
    local mirror
    [ "$1" = "$pinned_library_version" ] || return 1
    mirror=$(debian_mirror)
    /usr/lib/apt/apt-helper -q -o APT::Sandbox::User=root -o Acquire::Retries=3 \
        download-file "${mirror%/}/$pinned_library_package" "$2/rust-src.deb" "SHA256:$pinned_library_sha256"
}

# Puts the package for Rust $1 into the folder $2, from the first suite that has it.
fetch_suite_library() {
    local version=$1 state=$2 suite found
    for suite in "${library_suites[@]}"; do
        debian_use "$state/$suite" "$suite" || continue
        for found in $(debian_versions rust-src); do
            if [[ $found == "$version".* ]] && debian_fetch rust-src "$found" "$state"; then
                mv "$state"/rust-src_*.deb "$state/rust-src.deb"
                return 0
            fi
        done
        say "Debian $suite has no rust-src $version"
    done
    return 1
}
