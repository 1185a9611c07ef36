# shellcheck shell=bash
# Packages of Debian suites that this machine does not follow, fetched without touching the system: lists, archives and
# configuration of apt are in a private folder. The mirror is the machine's own; apt checks the signatures.
# To be sourced after common.sh. Each function returns a failure; the caller says what that means for it.

# Prints what apt is configured to read, below the folder $1: KEY|COMPONENTS|ADDRESS, a line for each address. Not taken
# from `apt-get indextargets`, which knows only what `apt-get update` has fetched.
debian_sources() {
    local file
    for file in "$1"/sources.list "$1"/sources.list.d/*.list; do
        [ -r "$file" ] || continue
        sed -e 's/#.*//' "$file" | awk '$1 == "deb" || $1 == "deb-src" {
            key = ""
            if (match($0, /\[[^]]*\]/)) {
                key = substr($0, RSTART, RLENGTH)
                key = key ~ /signed-by=/ ? key : ""
                $0 = substr($0, 1, RSTART - 1) substr($0, RSTART + RLENGTH)
            }
            address = $2
            $1 = $2 = $3 = ""
            print key "|" $0 " |" address
        }'
    done
    for file in "$1"/sources.list.d/*.sources; do
        [ -r "$file" ] || continue
        # A stanza is a record, and its continued lines are made one.
        sed -e '/^#/d' -e 's/^[[:space:]]*$//' "$file" | awk 'BEGIN { RS = ""; FS = "\n" } {
            split("", field)
            for (line = 1; line <= NF; line++) {
                if ($line !~ /^[ \t]/) {
                    name = tolower($line)
                    sub(/[ \t]*:.*/, "", name)
                    sub(/^[^:]*:/, "", $line)
                }
                field[name] = field[name] " " $line
            }
            if (tolower(field["enabled"]) ~ /no|false|without|off|disable|0/) next
            count = split(field["uris"], address, /[ \t]+/)
            for (i = 1; i <= count; i++) {
                if (address[i] != "") print field["signed-by"] "|" field["components"] " |" address[i]
            }
        }'
    done
}

# Prints the address of the Debian mirror that this machine uses, from apt's configuration in $1 (/etc/apt). Others name
# their archives .../debian too: ours has the component `main`, and no other key than Debian's, as apt is to check that.
debian_mirror() {
    local key components address
    while IFS='|' read -r key components address; do
        case $key in *[![:space:]]*) [[ $key == *debian-archive* ]] || continue ;; esac
        [[ $components == *[[:space:]]main[[:space:]]* ]] || continue
        [[ $address =~ ^https?://.*/debian/?$ && ! $address =~ /linux/debian/?$ ]] || continue
        printf '%s\n' "$address"
        return 0
    done < <(debian_sources "${1:-/etc/apt}")
    return 1
}

# Prints the file with the keys that Debian signs its archive with.
debian_keyring() {
    local name
    for name in /usr/share/keyrings/debian-archive-keyring.{pgp,gpg}; do
        if [ -e "$name" ]; then
            printf '%s\n' "$name"
            return 0
        fi
    done
    return 1
}

# Whether this machine can fetch packages of Debian at all.
debian_available() {
    command -v apt-get >/dev/null && debian_mirror >/dev/null && debian_keyring >/dev/null
}

# Reads the list of a suite into the folder $1, and makes it what the functions below work on. $2 is the suite (`sid`,
# `trixie`), $3 what to list: `deb`, the default, or `deb-src`.
debian_use() {
    local state=$1 suite=$2 kind=${3:-deb}
    mkdir -p "$state"/{lists,archives}/partial || return 1
    printf '%s [signed-by=%s] %s %s main\n' \
        "$kind" "$(debian_keyring)" "$(debian_mirror)" "$suite" >"$state/sources.list"
    debian_apt=(-q -o "Dir::Etc::sourcelist=$state/sources.list" -o Dir::Etc::sourceparts=/dev/null
        -o "Dir::State::lists=$state/lists" -o "Dir::Cache=$state" -o APT::Get::List-Cleanup=0
        -o APT::Sandbox::User=root -o Acquire::Languages=none -o Acquire::Retries=3)
    apt-get "${debian_apt[@]}" update
}

# Prints the versions of the package $1 in the suite, the newest first.
debian_versions() { apt-cache "${debian_apt[@]}" madison "$1" | awk '{print $3}'; }

# Fetches the version $2 of the package $1 into the folder $3.
debian_fetch() { (cd "$3" && apt-get "${debian_apt[@]}" download "$1=$2"); }

# Fetches the source of the version $2 of the source package $1 into the folder $3.
debian_fetch_source() {
    (cd "$3" && apt-get "${debian_apt[@]}" source --only-source --download-only "$1=$2")
}
