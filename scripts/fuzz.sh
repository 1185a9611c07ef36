#!/usr/bin/env bash
# Fuzzes flex with the targets of fuzz/ (docs/verification.md): fuzz.sh [SECONDS] [TARGET...], by default 60 seconds of
# every target. What libFuzzer finds on the way is kept in target/fuzz/corpus, and the next run begins with it and with
# fuzz/corpus. A finding fails, and says how to repeat it. FUZZ_SEED=N instead of a random seed.
#
# No sanitizer: flex has no unsafe code that one could watch. So the pinned stable toolchain will do.
set -euo pipefail
. "$(dirname "$0")/common.sh"

version=0.13.2
tools=$root/target/tools
fuzz=("$tools/bin/cargo-fuzz" fuzz)
build=(-s none --target-dir "$root/target/fuzz")

seconds=60
if [ $# -gt 0 ] && [[ $1 =~ ^[0-9]+$ ]]; then
    seconds=$1
    shift
fi
[ "$seconds" -gt 0 ] || die "no time to fuzz in; expected at least 1 second"
known=()
for file in fuzz/fuzz_targets/*.rs; do known+=("$(basename "$file" .rs)"); done
if [ $# -gt 0 ]; then targets=("$@"); else targets=("${known[@]}"); fi
for target in "${targets[@]}"; do
    [ -f "fuzz/fuzz_targets/$target.rs" ] || die "no fuzz target $target; there are: ${known[*]}"
done

if [ "$("${fuzz[@]}" --version 2>/dev/null)" != "cargo-fuzz $version" ]; then
    say "cargo-fuzz $version, into target/tools"
    cargo install --quiet --locked --root "$tools" --target-dir "$tools/build" --version "=$version" cargo-fuzz
    rm -rf "$tools/build"
fi

# stat TARGET NAME: a figure of the last run.
stat() { sed -n "s/^stat::$2: *//p" "target/fuzz/$1.log"; }

# run TARGET: fuzzes it, with what libFuzzer says in a log.
run() {
    local target=$1 artifacts=target/fuzz/findings/$1/ corpus=(target/fuzz/corpus/"$1" fuzz/corpus/"$1") inputs
    local options=(-max_total_time="$seconds" -max_len=1024 -len_control=0 -timeout=30 -print_final_stats=1)
    if [ -n "${FUZZ_SEED:-}" ]; then options+=(-seed="$FUZZ_SEED"); fi
    mkdir -p "${corpus[0]}" "$artifacts"
    inputs=$(find "${corpus[@]}" -type f | wc -l)
    say "$target: $seconds s, beginning with $inputs inputs, $(find "${corpus[1]}" -type f | wc -l) of them committed"
    if ! RUST_BACKTRACE=1 "${fuzz[@]}" run "${build[@]}" "$target" "${corpus[@]}" -- \
        "${options[@]}" -artifact_prefix="$root/$artifacts" >"target/fuzz/$target.log" 2>&1; then
        finding "$target"
    fi
    say "$target: $(stat "$target" number_of_executed_units) executions," \
        "$(stat "$target" new_units_added) new inputs, nothing found"
}

# finding TARGET: says what was found and ends.
finding() {
    local input command
    grep -v '^#' "target/fuzz/$1.log" | tail -n 80 >&2
    input=$(sed -n 's/.*Test unit written to //p' "target/fuzz/$1.log" | tail -n 1)
    [ -n "$input" ] || die "the fuzzer of $1 did not run; its log is target/fuzz/$1.log"
    command="target/tools/bin/cargo-fuzz fuzz"
    die "the fuzzer of $1 has a finding, $input
    repeat it:   RUST_BACKTRACE=1 $command run -s none --target-dir target/fuzz $1 $input
    minimise it: $command tmin -s none --target-dir target/fuzz $1 $input"
}

mkdir -p target/fuzz
say "The fuzz targets"
"${fuzz[@]}" build "${build[@]}"
for target in "${targets[@]}"; do run "$target"; done
