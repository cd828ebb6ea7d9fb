#!/usr/bin/env bash
# Run fuzzers, one on each processor at a time, each for so many seconds from its corpus in
# tests/fuzz/corpus.
#
#   scripts/fuzz.sh BUILD SECONDS NAME...
#
# New inputs go to BUILD/corpus/NAME, not into the tree; what breaks a fuzzer to BUILD/found/NAME-*,
# and its name is said. The last line is "N passed, N failed", a fuzzer being a test.
set -euo pipefail

if (($# < 3)) || [[ ! $2 =~ ^[1-9][0-9]*$ ]]; then
    printf 'usage: %s BUILD SECONDS NAME...\n' "$0" >&2
    exit 2
fi
build=$1 seconds=$2
shift 2
tree=$(cd "$(dirname "$0")/.." && pwd)
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:allocator_may_return_null=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-halt_on_error=1:print_stacktrace=1}
mkdir -p "$build/found" "$build/logs"

# Run one; its line, and what it said if it failed, go to its result.
fuzz_one() {
    local name=$1 log=$build/logs/$1 result=$build/logs/$1.result
    mkdir -p "$build/corpus/$name"
    local options=(-max_total_time="$seconds" -timeout=100 -rss_limit_mb=2048 -print_final_stats=1
        -artifact_prefix="$build/found/$name-")
    [[ ! -e $tree/tests/fuzz/$name.dict ]] || options+=(-dict="$tree/tests/fuzz/$name.dict")
    if timeout -k 10 $((seconds + 60)) "$build/libfuzzer/$name" "${options[@]}" \
        "$build/corpus/$name" "$tree/tests/fuzz/corpus/$name" >"$log" 2>&1 </dev/null; then
        printf '%-16s ok, %s runs\n' "$name" \
            "$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")" >"$result"
    else
        { printf '%-16s FAILED\n' "$name" && tail -n 40 "$log"; } >"$result"
    fi
    cat "$result"
}

rm -f "$build/logs/"*.result
for name in "$@"; do
    (($(jobs -rp | wc -l) < $(nproc))) || wait -n
    fuzz_one "$name" &
done
wait

passed=$(cat "$build/logs/"*.result | grep -c '^[a-z_]* *ok, [0-9]* runs$' || true)
printf '%d passed, %d failed\n' "$passed" $(($# - passed))
((passed == $#))
