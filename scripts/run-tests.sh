#!/usr/bin/env bash
# Run test programs and add up what they say.
#
#   scripts/run-tests.sh BUILD TEST...
#   scripts/run-tests.sh --self-test    show that no kind of failure is counted as a success
#
# One more at once than there are processors, since they wait half of the time; those under tests/python
# come last, two at a time: torch's own processes need a processor each, but a program waits while its
# ranks start and end. Output goes to
# BUILD/test-logs, one file a program; a failing program's is shown, and what failed in it again at the
# end. A program that crashes, runs into its limit or says nothing counts as one failed test. The last
# line is "N passed, N failed", with ", N skipped" when some were. Where stderr is a terminal, a line
# there says what runs now.
#
#   TEST_TIMEOUT_S   the limit of one program, default 300
#   TEST_JOBS        how many at once, default: one more than processors
#   TEST_TORCH_JOBS  how many of tests/python at once, default: 2
#   PYTHON           what runs those of Python, default /usr/bin/python3
set -euo pipefail

# A stand-in for each way in which a program can end, and what must be said of it.
self_test() {
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    local tests=$scratch/tests output status expected name names=()
    mkdir -p "$tests/common" "$tests/e2e" "$tests/python"
    program() {
        printf '#!/bin/bash\n%s\n' "$2" >"$tests/$1"
        chmod +x "$tests/$1"
    }
    program common/good 'echo "100%: Checks: 3, Failures: 0, Errors: 0"'
    program common/some 'echo "50%: Checks: 6, Failures: 2, Errors: 1"; echo "some.c:7:F:case:one:0: said"; exit 1'
    program common/crash 'echo "100%: Checks: 3, Failures: 0, Errors: 0"; kill -SEGV $$'
    program common/silent 'exit 0'
    program common/leak 'echo "100%: Checks: 3, Failures: 0, Errors: 0"; exit 97'
    # shellcheck disable=SC2016
    program common/hang 'sleep 60 & echo $! >"$0.pid"; wait'
    program common/skip 'echo "SKIP one: no reason"; echo "100%: Checks: 3, Failures: 0, Errors: 0"'
    program common/skipall 'echo "SKIP all: not here"'
    program e2e/two 'echo "100%: Checks: 1, Failures: 0, Errors: 0"; echo "100%: Checks: 4, Failures: 0, Errors: 0"'
    # Those of Python are run by the one that is asked for.
    program python/any.py 'exit 3'
    program python/interpreter 'echo "100%: Checks: 2, Failures: 0, Errors: 0"'
    local bad=0 count=0 drawn
    while read -r name status expected; do
        count=$((count + 1))
        local got=0
        read -ra names <<<"${name//,/ }"
        output=$(TEST_TIMEOUT_S=2 PYTHON=$tests/python/interpreter "$0" "$scratch" "${names[@]/#/$tests/}" 2>&1) || got=$?
        [[ $got == "$status" && ${output##*$'\n'} == "$expected" ]] && continue
        printf 'run-tests self-test: %s: status %d, expected %d "%s", got:\n%s\n' \
            "$name" "$got" "$status" "$expected" "$output"
        bad=$((bad + 1))
    done <<'CASES'
common/good 0 3 passed, 0 failed
common/some 1 3 passed, 3 failed
common/crash 1 3 passed, 1 failed
common/silent 1 0 passed, 1 failed
common/leak 1 3 passed, 1 failed
common/hang 1 0 passed, 1 failed
common/skip 0 2 passed, 0 failed, 1 skipped
common/skipall,common/good 0 3 passed, 0 failed, 1 skipped
common/absent 1 0 passed, 1 failed
python/any.py 0 2 passed, 0 failed
e2e/two,common/good,common/some 1 11 passed, 3 failed
CASES
    count=$((count + 1))
    output=$(TEST_JOBS=1 TERM=xterm "$0" "$scratch" "$tests/common/some" "$tests/common/silent" 2>&1) || true
    expected=$'failed:\n  common/some: FAILED\n    some.c:7:F:case:one:0: said\n  common/silent: no totals\n3 passed, 4 failed'
    if [[ $output != *"$expected" || $output == *$'\e'* ]]; then
        printf 'run-tests self-test: the end of two failures, expected:\n%s\ngot:\n%s\n' "$expected" "$output"
        bad=$((bad + 1))
    fi
    # On a terminal the line of what runs is drawn, cut to its width, and erased; on one that cannot erase,
    # as in a pipe, there is none of it.
    local term wants first second
    first=$'\r0 of 2, now: common/some\e[K\r\r\e[Kcommon/some  '
    second=$'\r1 of 2, 3 failed, now: common/g\e[K\r\r\e[Kcommon/good  '
    while read -r term wants; do
        count=$((count + 1))
        # shellcheck disable=SC2016
        output=$(TEST_JOBS=1 TERM=$term RUN="$0" AT=$scratch script -qec \
            'stty cols 32; exec "$RUN" "$AT" "$AT/tests/common/some" "$AT/tests/common/good"' \
            /dev/null </dev/null) || true
        case $output in
        *"$first"*"$second"*$'\r\e[Kfailed:'*) drawn=yes ;;
        *$'\e'* | *now:*) drawn=wrong ;;
        *'6 passed, 3 failed'*) drawn=no ;;
        *) drawn=nothing ;;
        esac
        [[ $drawn == "$wants" ]] && continue
        printf 'run-tests self-test: the line on a terminal "%s": %q\n' "$term" "$output"
        bad=$((bad + 1))
    done <<<$'xterm yes\ndumb no'
    # Gone, or dead and not collected yet.
    local stat=''
    read -r stat 2>/dev/null <"/proc/$(cat "$tests/common/hang.pid")/stat" || true
    if [[ $stat && $stat != *') Z '* ]]; then
        printf 'run-tests self-test: the child of a program that hangs lives on\n'
        bad=$((bad + 1))
    fi
    if ((bad > 0)); then
        return 1
    fi
    printf 'run-tests self-test: %d cases\n' "$count"
}

if [[ ${1:-} == --self-test ]]; then
    self_test
    exit
fi
if (($# < 1)); then
    printf 'usage: %s BUILD TEST...\n' "$0" >&2
    exit 2
fi
build=$1
shift
root=$(cd "$(dirname "$0")/.." && pwd)
logs=$build/test-logs
timeout_s=${TEST_TIMEOUT_S:-300}
jobs_max=${TEST_JOBS:-$(($(nproc) + 1))}
torch_jobs_max=${TEST_TORCH_JOBS:-2}

# Options of the sanitizers: the first finding ends the program, with a status of its own.
suppressions() {
    [[ ! -e $root/tests/$1.supp ]] || printf ':suppressions=%s' "$root/tests/$1.supp"
}
export ASAN_OPTIONS=${ASAN_OPTIONS:-halt_on_error=1:exitcode=99:detect_leaks=1:strict_string_checks=1$(suppressions asan)}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-halt_on_error=1:print_stacktrace=1:exitcode=98$(suppressions ubsan)}
export LSAN_OPTIONS=${LSAN_OPTIONS:-exitcode=97:print_suppressions=0$(suppressions lsan)}
export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1:exitcode=66:second_deadlock_stack=1$(suppressions tsan)}
# Debian's libfabric loads a library that takes over signals unless it is told not to.
export IPATH_NO_BACKTRACE=1 HFI_NO_BACKTRACE=1
# What those of Python test.
TEST_BUILD_DIR=$(cd "$build" && pwd)
export TEST_BUILD_DIR
# Where the first of them leaves whether there is torch.
export TEST_TORCH_SEEN=$TEST_BUILD_DIR/test-logs/torch-seen
# Check's own limit of 4 s a test is meant for an idle machine.
export CK_DEFAULT_TIMEOUT=${CK_DEFAULT_TIMEOUT:-60}

prefix=()
case $build in
*asan* | *tsan*) export CK_TIMEOUT_MULTIPLIER=${CK_TIMEOUT_MULTIPLIER:-3} ;;
esac
# The thread sanitizer of GCC 12 does not find its way where addresses are randomised too far.
if [[ $build == *tsan* ]] && setarch "$(uname -m)" -R true 2>/dev/null; then
    prefix=(setarch "$(uname -m)" -R)
fi

# The line of what runs now, on a terminal only; it is erased before another is printed.
shows_progress=0
[[ ! -t 2 || ${TERM:-dumb} == dumb ]] || shows_progress=1

progress_erase() {
    ((!shows_progress)) || printf '\r\033[K' >&2
}

progress() {
    ((shows_progress)) || return 0
    local size columns program line="$finished of $total" running=''
    ((failed == 0)) || line+=", $failed failed"
    for program in "${program_of[@]}"; do
        running+=", $(name_of "$program")"
    done
    [[ ! $running ]] || line+=", now: ${running#, }"
    # The last column stays free: a full line goes on in the next, where it could not be erased. What others
    # write begins where this does.
    size=$(stty size <&2 2>/dev/null) || size=
    columns=${size#* }
    ((${columns:-0} > 0)) || columns=80
    line=${line//[^[:print:]]/?}
    printf '\r%s\033[K\r' "${line:0:columns-1}" >&2
}

declare -A program_of=() start_of=() # by process id
passed=0 failed=0 skipped=0 finished=0 total=0
skip_lines=() failure_lines=()

name_of() {
    local name=${1#"$build"/}
    printf '%s' "${name#tests/}"
}

# timeout puts the program into a process group of its own and passes on what it is sent, so that
# ending it ends the program's children too.
start() {
    local name log command=("$1")
    name=$(name_of "$1")
    log=$logs/${name//\//-}.log
    [[ $1 != *.py ]] || command=("${PYTHON:-/usr/bin/python3}" "$1")
    env --default-signal=INT,QUIT timeout -k 10 "$timeout_s" "${prefix[@]}" "${command[@]}" \
        </dev/null >"$log" 2>&1 &
    program_of[$!]=$1
    start_of[$!]=${EPOCHREALTIME/./}
    progress
}

# Sum of Check's lines "NN%: Checks: N, Failures: F, Errors: E", as "LINES CHECKS BAD".
totals() {
    awk '/^[0-9]+%: Checks: [0-9]+, Failures: [0-9]+, Errors: [0-9]+/ {
            gsub(/[^0-9]+/, " "); lines++; checks += $2; bad += $3 + $4
        }
        END { print lines + 0, checks + 0, bad + 0 }' "$1"
}

# Check's and unittest's lines of the tests that failed and the sanitizers' of what they found; for a
# program without any, how its output ends.
failures() {
    local patterns='^[^ ]+:[0-9]+:[FE]:|^(FAIL|ERROR): |^[A-Za-z]*(Error|Exception): |[A-Z][A-Za-z]*Sanitizer: '
    if grep -aqE "$patterns" "$1"; then
        grep -aE -m 20 "$patterns" "$1"
    else
        tail -n 5 "$1"
    fi
}

finish() {
    local pid=$1 status=$2 program name log lines checks bad skips ms what=ok
    program=${program_of[$pid]}
    ms=$(((${EPOCHREALTIME/./} - start_of[$pid]) / 1000))
    unset "program_of[$pid]" "start_of[$pid]"
    name=$(name_of "$program")
    log=$logs/${name//\//-}.log

    read -r lines checks bad < <(totals "$log")
    mapfile -t skips < <(grep -aE '^SKIP [^:]+: ' "$log" | LC_ALL=C sort -u || true)
    if ((status == 124 || status == 137)); then
        what="no end after $timeout_s s"
    elif ((status > 128)); then
        what="ended by signal $((status - 128))"
    elif ((bad > 0)); then
        what=FAILED
    elif ((status != 0)); then
        what="exit status $status"
    elif ((lines == 0 && ${#skips[@]} == 0)); then
        what="no totals"
    fi
    # What went wrong outside of the tests that were counted is one more failure.
    [[ $what == ok || $what == FAILED ]] || bad=$((bad + 1)) checks=$((checks + 1))
    # A test that skips itself has passed for Check.
    local good=$((checks - bad - ${#skips[@]}))
    ((good >= 0)) || good=0
    passed=$((passed + good)) failed=$((failed + bad)) skipped=$((skipped + ${#skips[@]}))
    local skip
    for skip in "${skips[@]}"; do
        skip_lines+=("$name: ${skip#SKIP }")
    done

    finished=$((finished + 1))
    progress_erase
    printf '%-36s %4d passed %3d failed %3d skipped %5d.%01d s  %s\n' \
        "$name" "$good" "$bad" "${#skips[@]}" $((ms / 1000)) $((ms % 1000 / 100)) "$what"
    if [[ $what != ok ]]; then
        printf -- '--- %s\n' "$log"
        cat "$log"
        printf -- '--- end of %s\n' "$log"
        failure_lines+=("$name: $what")
        mapfile -t -O "${#failure_lines[@]}" failure_lines < <(failures "$log" | sed 's/^/  /')
    fi
    progress
}

wait_for_one() {
    local pid='' status=0
    wait -n -p pid "${!program_of[@]}" 2>/dev/null || status=$?
    if [[ ${pid:-} ]]; then
        finish "$pid" "$status"
        return
    fi
    # One that bash has collected already is found by `wait` alone.
    for pid in "${!program_of[@]}"; do
        kill -0 "$pid" 2>/dev/null && continue
        status=0
        wait "$pid" 2>/dev/null || status=$?
        finish "$pid" "$status"
        return
    done
}

run() {
    local at_once=$1 program
    shift
    for program in "$@"; do
        while ((${#program_of[@]} >= at_once)); do
            wait_for_one
        done
        start "$program"
    done
    while ((${#program_of[@]} > 0)); do
        wait_for_one
    done
}

end_children() {
    local pid
    for pid in "${!program_of[@]}"; do
        kill -TERM "$pid" 2>/dev/null || true
    done
    for pid in "${!program_of[@]}"; do
        wait "$pid" 2>/dev/null || true
    done
}
trap 'trap - INT TERM HUP; progress_erase; end_children; exit 130' INT TERM HUP

rm -rf "$logs"
mkdir -p "$logs"
total=$#
ours=() torchs=()
for program in "$@"; do
    case $program in
    */tests/python/* | tests/python/*) torchs+=("$program") ;;
    *) ours+=("$program") ;;
    esac
done
run "$jobs_max" "${ours[@]}"
run "$torch_jobs_max" "${torchs[@]}"
progress_erase

if ((${#skip_lines[@]} > 0)); then
    printf 'skipped:\n'
    printf '  %s\n' "${skip_lines[@]}"
fi
# Once more, where the end of a long output shows it.
if ((${#failure_lines[@]} > 0)); then
    printf 'failed:\n'
    printf '  %s\n' "${failure_lines[@]}"
fi
printf '%d passed, %d failed' "$passed" "$failed"
((skipped == 0)) || printf ', %d skipped' "$skipped"
printf '\n'
((failed == 0 && passed > 0))
