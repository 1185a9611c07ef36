#!/usr/bin/env bash
# Builds the extension module and puts it where Python finds it, and the command flexmem beside Python.
#
#   extension.sh            the release build, placed in python/torch_spyre, which .venv sees (an editable install)
#   extension.sh checked    the build with debug assertions (lock ranks, accounting), placed with a copy of the
#                           Python package in target/checked/python: put that folder on PYTHONPATH to use it
#
# Builds for interpreters with a GIL and for a free-threaded one lie side by side: they have other names. The latter
# use no stable ABI, which CPython does not have there. One for another PyTorch ($TORCH_SPYRE_TORCH) would have the same
# name: it gets a copy of the package too, in python under cargo's folder.
#
# The command knows no Python: all environments of the checkout have a copy of one build of it, made with the release
# build of the extension.
#
# What a running program may have loaded, or be about to, is replaced by rename, never overwritten or taken away.
set -euo pipefail
. "$(dirname "$0")/common.sh"

profile=${1:-release}
target=$CARGO_TARGET_DIR
mkdir -p "$target"
exec 9>"$target/extension.lock"
if command -v flock >/dev/null; then flock 9; fi # Runs at the same time take turns.
packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
suffix=so
if [ "$(uname)" = Darwin ]; then suffix=dylib; fi
# The ending of the module's name, and what cargo is told.
read -r ending features < <("$venv/bin/python" -c '
import sysconfig
free_threaded = sysconfig.get_config_var("Py_GIL_DISABLED")
print(sysconfig.get_config_var("EXT_SUFFIX") + " --no-default-features" if free_threaded else ".abi3.so")')

# put FILE PLACE: by rename, unless the same is there already.
put() {
    if ! cmp -s "$1" "$2"; then
        cp "$1" "$2.$$"
        mv -f "$2.$$" "$2"
    fi
}

# place PROFILE FOLDER
place() { put "$target/$1/libtorch_spyre_c.$suffix" "$2/_C$ending"; }

# copy_package FOLDER: a copy of the Python package for an extension of its own, brought up to date in place: other runs
# import from it. Links (the headers lead to include/) become files. What the package lacks by now goes.
copy_package() {
    local copy=$1 name
    while IFS= read -r -d '' name; do
        mkdir -p "$copy/$(dirname "$name")"
        put "python/$name" "$copy/$name"
    done < <(find -L python -type f ! -path '*/__pycache__/*' ! -name '_C.*.so*' -printf '%P\0')
    while IFS= read -r -d '' name; do
        case $name in
        "torch_spyre/_C$ending") ;;
        */__pycache__/*) [ -d "python/${name%/__pycache__/*}" ] || rm -f "$copy/$name" ;;
        */_C.*.so*) rm -f "$copy/$name" ;;
        *) [ -f "python/$name" ] || rm -f "$copy/$name" ;;
        esac
    done < <(find "$copy" -type f -printf '%P\0')
    find "$copy" -mindepth 1 -type d -empty -delete
}

# install_command: builds flexmem and puts it into the environment. maturin wants a folder for programs, which only the
# wheel needs.
install_command() {
    mkdir -p "$root/target/wheel/scripts"
    cargo build --release --package flexmem --bin flexmem --target-dir "$root/target"
    put "$root/target/release/flexmem" "$venv/bin/flexmem"
}

# install_editable FOLDER: the metadata makes `import torch` find the device (an entry point), the path file makes the
# package in FOLDER importable.
install_editable() {
    local info
    info=$(find "$packages" -maxdepth 1 -name 'torch_spyre_flex-*.dist-info' -newer pyproject.toml -newer Cargo.toml)
    if [ -n "$info" ]; then return; fi
    say "Installing torch_spyre into $TORCH_SPYRE_VENV (editable)"
    rm -rf "$packages"/torch_spyre_flex-*.dist-info
    printf '%s\n' "$1" >"$packages/torch_spyre_flex.pth"
    info=$("$venv/bin/maturin" pep517 write-dist-info --quiet --metadata-directory "$packages" \
        --interpreter "$venv/bin/python" ${features:+"$features"} | tail -n 1)
    info=$packages/$info
    echo make >"$info/INSTALLER"
    (cd "$packages" && find "$(basename "$info")" torch_spyre_flex.pth -type f -printf '%p,,\n') >"$info/RECORD"
    echo ../../../bin/flexmem,, >>"$info/RECORD"
    touch "$info"
}

# cargo does not see when the environment has become another: another interpreter, another PyTorch.
if [ -e "$target/made-for" ] && ! cmp -s "$venv/made-for" "$target/made-for"; then
    for old in dev release checked; do
        cargo clean --quiet --profile "$old" --package torch-spyre --package pyo3-build-config --package pyo3-ffi
    done
fi
cp "$venv/made-for" "$target/made-for"

if [ ! -e "$target/$profile/libtorch_spyre_c.$suffix" ]; then
    say "Building the extension (profile $profile; some minutes the first time)"
fi
cargo build --package torch-spyre --profile "$profile" ${features:+"$features"}

case $profile in
release)
    package=$root/python
    if [ -n "${TORCH_SPYRE_TORCH:-}" ]; then
        package=$target/python
        copy_package "$package"
    fi
    place release "$package/torch_spyre"
    install_command
    install_editable "$package"
    ;;
checked)
    copy=$target/checked/python
    copy_package "$copy"
    place checked "$copy/torch_spyre"
    ;;
*) die "unknown profile $profile" ;;
esac
