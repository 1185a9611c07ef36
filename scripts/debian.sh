# shellcheck shell=bash
# Debian's archive through apt, in private folders: lists, packages and configuration are ours, so the system stays
# as it is, and apt checks the signatures. To be sourced after common.sh.
#
# Errors end with the text in $otherwise, which says how to do without.

otherwise=

# The address of the Debian mirror that this machine uses.
debian_mirror() {
    local found
    found=$(grep -rhoE 'https?://[^ ]+/debian/?( |$)' /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null |
        head -n 1) || true
    [ -n "$found" ] || die "apt names no Debian mirror here$otherwise"
    printf '%s\n' "${found%% *}"
}

# debian_archive FOLDER KIND SUITE: reads the list of packages (KIND deb) or sources (deb-src) of a release of Debian,
# and leaves in the array $apt the options with which apt-get and apt-cache use it. FOLDER is theirs.
debian_archive() {
    local folder=$1 kind=$2 suite=$3 name keyring='' mirror
    command -v apt-get >/dev/null || die "this machine has no apt$otherwise"
    for name in /usr/share/keyrings/debian-archive-keyring.{pgp,gpg}; do
        if [ -e "$name" ]; then keyring=$name; fi
    done
    [ -n "$keyring" ] || die "no Debian archive keys; install the package debian-archive-keyring$otherwise"
    mirror=$(debian_mirror)
    mkdir -p "$folder"/{lists,archives}/partial
    printf '%s [signed-by=%s] %s %s main\n' "$kind" "$keyring" "$mirror" "$suite" >"$folder/sources.list"
    apt=(-q -o "Dir::Etc::sourcelist=$folder/sources.list" -o Dir::Etc::sourceparts=/dev/null
        -o "Dir::State::lists=$folder/lists" -o "Dir::Cache=$folder" -o APT::Get::List-Cleanup=0
        -o APT::Sandbox::User=root -o Acquire::Languages=none -o Acquire::Retries=3)
    apt-get "${apt[@]}" update || die "apt cannot read Debian $suite (the reason is above)$otherwise"
}

# Prints the newest version of the package $1 that begins with $2, or nothing.
debian_version() {
    local version
    for version in $(apt-cache "${apt[@]}" madison "$1" | awk '{print $3}' | sort -Vr); do
        case $version in "$2"*) printf '%s\n' "$version" && return ;; esac
    done
}
