#!/usr/bin/env bash
# Prints the path of a headless Chromium for the tests of pages: $CHROMIUM if that is set, else the one in the package
# cache, which is fetched first if it is missing (90 MB to download, half a minute; 300 MB on disk).
#
# It is Debian's package `chromium-headless-shell` of the machine's own release, with those of the libraries that it
# needs which the machine does not have, and a font; unpacked, nothing is installed. The folder in the cache is named
# after release and packages, and appears by rename when it is complete. A lock keeps parallel runs apart. The program
# in it is a script that names the libraries. Everything but the path goes to standard error.
set -euo pipefail
. "$(dirname "$0")/common.sh"
. scripts/debian.sh
exec 3>&1 >&2

program=chromium-headless-shell font=fonts-dejavu-core
otherwise=", or set CHROMIUM to the path of a Chromium or a headless shell"

if [ -n "${CHROMIUM:-}" ]; then
    "$CHROMIUM" --version >/dev/null || die "CHROMIUM=$CHROMIUM does not run"
    printf '%s\n' "$CHROMIUM" >&3
    exit
fi

debian_available || die "this machine has no apt that names a Debian mirror, or no keys of Debian$otherwise"
suite=$(. /etc/os-release && printf '%s' "${VERSION_CODENAME:-}")
[ -n "$suite" ] || die "/etc/os-release names no release of Debian$otherwise"
architecture=$(dpkg --print-architecture)

# The number is the layout of the folder, to be raised when this script changes it.
key=$(printf '%s\n' 2 "$program" "$font" | sha256sum | cut -c1-12)
folder=$cache/chromium-$suite-$architecture-$key
part=$folder.part

# Fetches the program, what it needs and the machine lacks, and the font; unpacks them into $part/root. The font is
# fetched even if the machine has it, for the program looks nowhere else.
fetch() {
    local archive
    debian_use "$part/apt" "$suite" || die "apt cannot read Debian $suite (the reason is above)$otherwise"
    apt-get "${debian_apt[@]}" -y --no-install-recommends --download-only install "$program" ||
        die "apt cannot fetch $program of Debian $suite$otherwise"
    (cd "$part/apt/archives" && apt-get "${debian_apt[@]}" download "$font") ||
        die "apt cannot fetch $font of Debian $suite$otherwise"
    for archive in "$part"/apt/archives/*.deb; do dpkg-deb -x "$archive" "$part/root"; done
}

# Writes $part/root/chromium, which runs the program with what was unpacked with it, wherever the folder lies.
write_program() {
    local root=$part/root
    cat >"$root/fonts.conf" <<'FONTS'
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir prefix="relative">usr/share/fonts</dir>
  <cachedir prefix="xdg">fontconfig</cachedir>
</fontconfig>
FONTS
    cat >"$root/chromium" <<'PROGRAM'
#!/bin/bash
root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
for folder in "$root"/usr/lib/*-linux-gnu*/ "$root"/usr/lib/*-linux-gnu*/pulseaudio/; do libraries+=$folder:; done
export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:-} FONTCONFIG_FILE=$root/fonts.conf
exec "$root/usr/lib/chromium/chromium-headless-shell" "$@"
PROGRAM
    chmod +x "$root/chromium"
}

if [ ! -d "$folder" ]; then
    mkdir -p "$cache"
    exec 9>"$folder.lock"
    flock 9
fi
if [ ! -d "$folder" ]; then
    say "Fetching Chromium into $folder (once per machine; 90 MB to download, half a minute)"
    rm -rf "$part"
    mkdir -p "$part/root"
    fetch
    write_program
    # With a page: the version alone needs no font.
    "$part/root/chromium" --no-sandbox --dump-dom data:text/html,A >/dev/null 2>&1 ||
        die "the Chromium that was fetched does not run$otherwise"
    mv -T "$part/root" "$folder"
    rm -rf "$part"
fi
printf '%s\n' "$folder/chromium" >&3
