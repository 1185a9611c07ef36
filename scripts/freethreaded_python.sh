#!/usr/bin/env bash
# Prints the path of a free-threaded CPython: $FREETHREADED_PYTHON if that is set, else the one in the package cache.
# If that one is missing, it is built first: from upstream's sources as Debian distributes them, fetched through apt.
# (Debian's own patches move site-packages to where a free-threaded build does not look.)
#
# The folder in the cache is named after version and configuration, and appears by rename when it is complete. A lock
# keeps parallel runs apart. Everything but the path goes to standard error.
set -euo pipefail
. "$(dirname "$0")/common.sh"
. scripts/debian.sh
exec 3>&1 >&2

version=3.13.5 suite=trixie
# Without optimisation for speed the build takes a minute, and the tests spend their time elsewhere.
configuration=(--disable-gil --without-static-libpython --disable-test-modules 'OPT=-DNDEBUG -g0 -O1 -Wall')
# HEADER:PACKAGE: without these modules pip or PyTorch does not work.
headers=(zlib.h:zlib1g-dev openssl/ssl.h:libssl-dev ffi.h:libffi-dev)
is_usable='import ctypes, ssl, sys, venv, zlib; sys.exit(sys._is_gil_enabled())'
otherwise=",
or set FREETHREADED_PYTHON to the path of a free-threaded interpreter (CPython 3.13, python3.13t)"

if [ -n "${FREETHREADED_PYTHON:-}" ]; then
    "$FREETHREADED_PYTHON" -c "$is_usable" ||
        die "FREETHREADED_PYTHON=$FREETHREADED_PYTHON is not a usable free-threaded interpreter"
    printf '%s\n' "$FREETHREADED_PYTHON" >&3
    exit
fi

key=$(printf '%s\n' "${configuration[@]}" | sha256sum | cut -c1-12)
prefix=$cache/python-${version}t-$(uname -m)-$key
part=$prefix.part
python=$prefix/bin/python3.13t

# Names what is missing for the build, together with the command that installs it.
check_tools() {
    local each missing=() cc=${CC:-cc}
    [ "$(uname)" = Linux ] || die "the interpreter is built on Debian only$otherwise"
    command -v "${cc%% *}" >/dev/null || missing+=(gcc)
    command -v make >/dev/null || missing+=(make)
    command -v xz >/dev/null || missing+=(xz-utils)
    for each in "${headers[@]}"; do
        printf '#include <%s>\n' "${each%%:*}" | $cc -fsyntax-only -x c - 2>/dev/null || missing+=("${each#*:}")
    done
    [ ${#missing[@]} = 0 ] || die "CPython cannot be built; install what is missing with
    sudo apt-get install ${missing[*]}$otherwise"
}

# Puts the sources into $part/source.
fetch() {
    local found
    debian_available || die "this machine has no apt that names a Debian mirror, or no keys of Debian$otherwise"
    debian_use "$part/apt" "$suite" deb-src || die "apt cannot read Debian $suite (the reason is above)$otherwise"
    found=$(debian_versions python3.13 | grep -m 1 "^$version-") ||
        die "Debian $suite has no source of Python $version any more$otherwise"
    debian_fetch_source python3.13 "$found" "$part" || die "apt cannot fetch the source python3.13 $found$otherwise"
    mkdir "$part/source"
    tar -xf "$part"/python3.13_*.orig.tar.xz -C "$part/source" --strip-components 1
}

# Builds $part/source for $prefix, but leaves the result in $part/root.
build() {
    mkdir "$part/build" && cd "$part/build" &&
        ../source/configure --quiet --prefix="$prefix" "${configuration[@]}" &&
        make --silent -j"$(getconf _NPROCESSORS_ONLN)" &&
        make --silent install DESTDIR="$part/root"
}

if [ ! -d "$prefix" ]; then
    mkdir -p "$cache"
    exec 9>"$prefix.lock"
    flock 9
fi
if [ ! -d "$prefix" ]; then
    check_tools
    say "Building free-threaded Python $version into $prefix (once per machine; two minutes)"
    rm -rf "$part"
    mkdir "$part"
    fetch
    (build) >"$part/log" 2>&1 || {
        tail -n 40 "$part/log"
        die "CPython does not build; the whole log is $part/log"
    }
    "$part/root$python" -c "$is_usable" || die "CPython was built without what is named above; the log is $part/log"
    mv -T "$part/root$prefix" "$prefix"
    rm -rf "$part"
fi
printf '%s\n' "$python" >&3
