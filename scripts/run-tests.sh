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
# A program that failed runs once more when all others have ended, and its second run counts. One that
# passes then is listed at the end under "unsteady:", with both outputs. A crash and what a sanitizer
# finds are never forgiven: such a program does not run again. Nor does any when many have failed.
#
#   TEST_TIMEOUT_S   the limit of one program, default 300
#   TEST_JOBS        how many at once, default: one more than processors
#   TEST_TORCH_JOBS  how many of tests/python at once, default: 2
#   TEST_RERUN       how many may fail and run once more, default 5; 0: none runs again
#   PYTHON           what runs those of Python, default /usr/bin/python3
set -euo pipefail

# A stand-in for each way in which a program can end, under the folder $tests: its name and what it does.
# Those of "once" end so in their first run, and pass in each one after that.
stand_ins() {
    local how name body
    mkdir -p "$tests/common" "$tests/e2e" "$tests/python"
    while read -r how name body; do
        [[ $how == always ]] || body="[[ ! -e \$0.ran ]] || { echo '100%: Checks: 3, Failures: 0, Errors: 0'; exit; }
            touch \"\$0.ran\"; $body"
        printf '#!/bin/bash\n%s\n' "$body" >"$tests/$name"
        chmod +x "$tests/$name"
    done <<'PROGRAMS'
always common/good echo "100%: Checks: 3, Failures: 0, Errors: 0"
always common/some echo "50%: Checks: 6, Failures: 2, Errors: 1"; echo "some.c:7:F:case:one:0: said"; exit 1
always common/crash echo "100%: Checks: 3, Failures: 0, Errors: 0"; kill -SEGV $$
always common/silent exit 0
always common/leak echo "100%: Checks: 3, Failures: 0, Errors: 0"; exit 97
always common/hang sleep 60 & echo $! >"$0.pid"; wait
always common/skip echo "SKIP one: no reason"; echo "100%: Checks: 3, Failures: 0, Errors: 0"
always common/skipall echo "SKIP all: not here"
always common/other touch "$0.ran"; echo "other.c:$(wc -l <"$0.ran"):F:said"; echo >>"$0.ran"; exit 1
always e2e/two echo "100%: Checks: 1, Failures: 0, Errors: 0"; echo "100%: Checks: 4, Failures: 0, Errors: 0"
always python/any.py exit 3
always python/busy.py exit 3
always python/interpreter [[ $1 == */busy.py && ! -e $1.ran ]] && touch "$1.ran" || echo "100%: Checks: 2, Failures: 0, Errors: 0"
once common/busy echo "SKIP x: y"; echo "66%: Checks: 3, Failures: 1, Errors: 0"; echo "0 passed, 9 failed"; exit 1
once common/late sleep 60
once common/shot kill -KILL $$
once common/segv kill -SEGV $$
once common/abrt kill -ABRT $$
once common/sys kill -SYS $$
once common/thread exit 66
once common/leaked exit 97
once common/undefined exit 98
once common/address exit 99
once common/forked echo "x.c:1:E:a:b:0: (after this point) Received signal 11 (Segmentation fault)"; exit 1
once common/other_signal echo "x.c:1:E:a:b:0: (after this point) Received unexpected signal 6 (Aborted)"; exit 1
once common/early echo "x.c:1:E:a:b:0: (after this point) Early exit with return value 99"; exit 1
once common/report echo "==7==ERROR: AddressSanitizer: heap-use-after-free"; exit 1
once common/overflow echo "x.c:1:2: runtime error: signed integer overflow"; exit 1
once common/child echo "test process: shoald ended by signal 6"; exit 1
once common/child_report echo "test process: shoald ended by the status of a sanitizer"; exit 1
once common/killed echo "shoalrun: rank 1 was killed by signal 9 (Killed)"; exit 1
once common/torchrun echo "  exitcode  : -11 (pid: 7)"; exit 1
once common/daemon echo "failed: daemon gone: the daemon of this node (socket /tmp/a/node0.sock) went away"; exit 1
once common/exit9 echo "x.c:1:E:a:b:0: (after this point) Early exit with return value 9"; exit 1
PROGRAMS
    # What passes only when one that was there beside it has ended, which waits for it to fail.
    cat >"$tests/common/beside" <<'PROGRAM'
#!/bin/bash
until [[ -e ${0%/*}/alone.ran ]]; do sleep 0.01; done
sleep 0.2
touch "$0.ran"
echo "100%: Checks: 1, Failures: 0, Errors: 0"
PROGRAM
    cat >"$tests/common/alone" <<'PROGRAM'
#!/bin/bash
touch "$0.ran"
[[ -e ${0%/*}/beside.ran ]] && echo "100%: Checks: 3, Failures: 0, Errors: 0"
PROGRAM
    chmod +x "$tests/common/beside" "$tests/common/alone"
}

# Run some of them with TEST_RERUN; print the exit status and then the output.
self_run() {
    local rerun=$1 limit_s=60 status=0 said
    [[ $* != *hang* && $* != *late* ]] || limit_s=5
    rm -f "$tests"/*/*.ran
    said=$(TEST_TIMEOUT_S=$limit_s TEST_RERUN=${rerun#-} PYTHON=$tests/python/interpreter \
        "$0" "$scratch" "${@:2}" 2>&1) || status=$?
    printf '%d\n%s' "$status" "$said"
}

self_test() {
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    local tests=$scratch/tests output status expected name names=()
    stand_ins
    local bad=0 count=0 drawn rerun
    while read -r rerun name status expected; do
        count=$((count + 1))
        read -ra names <<<"${name//,/ }"
        output=$(self_run "$rerun" "${names[@]/#/$tests/}")
        [[ ${output%%$'\n'*} == "$status" && ${output##*$'\n'} == "$expected" ]] && continue
        printf 'run-tests self-test: %s: expected status %d and "%s", got status %s\n' \
            "$name" "$status" "$expected" "$output"
        bad=$((bad + 1))
    done <<'CASES'
- common/good 0 3 passed, 0 failed
- common/some 1 3 passed, 3 failed
- common/crash 1 3 passed, 1 failed
- common/silent 1 0 passed, 1 failed
- common/leak 1 3 passed, 1 failed
0 common/hang 1 0 passed, 1 failed
- common/skip 0 2 passed, 0 failed, 1 skipped
- common/skipall,common/good 0 3 passed, 0 failed, 1 skipped
- common/absent 1 0 passed, 1 failed
- python/any.py 0 2 passed, 0 failed
- e2e/two,common/good,common/some 1 11 passed, 3 failed
- common/busy 0 3 passed, 0 failed
- python/busy.py,common/late,common/shot,common/good 0 11 passed, 0 failed
- common/alone,common/beside 0 4 passed, 0 failed
- common/busy,common/segv,common/good 1 6 passed, 1 failed
- common/busy,common/abrt,common/killed,common/exit9,common/shot,common/some 1 15 passed, 4 failed
0 common/busy,common/good 1 4 passed, 1 failed, 1 skipped
1 common/busy,common/killed 1 1 passed, 2 failed, 1 skipped
2 common/busy,common/killed 0 6 passed, 0 failed
- common/busy,common/killed,common/exit9,common/shot,common/silent,common/some 1 4 passed, 8 failed, 1 skipped
- common/segv,common/abrt,common/sys 1 0 passed, 3 failed
- common/thread,common/leaked,common/undefined,common/address 1 0 passed, 4 failed
- common/forked,common/other_signal,common/early,common/report 1 0 passed, 4 failed
- common/overflow,common/child,common/child_report,common/torchrun,common/daemon 1 0 passed, 5 failed
CASES
    # What is said of them at the end.
    while read -r name expected; do
        count=$((count + 1))
        read -ra names <<<"${name//,/ }"
        printf -v expected '%b' "${expected//@/$scratch/test-logs}"
        output=$(self_run - "${names[@]/#/$tests/}")
        [[ $output == *$'\n'"$expected" && $output != *$'\e'* ]] && continue
        printf 'run-tests self-test: the end of %s, expected:\n%s\ngot status %s\n' "$name" "$expected" "$output"
        bad=$((bad + 1))
    done <<'ENDS'
common/some,common/silent failed:\n  common/some: FAILED; alone: FAILED\n    some.c:7:F:case:one:0: said\n  common/silent: no totals; alone: no totals\n3 passed, 4 failed
common/other failed:\n  common/other: exit status 1; alone: exit status 1\n    other.c:0:F:said\n    other.c:1:F:said\n0 passed, 1 failed
common/killed,common/segv unsteady:\n  common/killed: exit status 1; alone: ok\n    --- @/common-killed.log\n    shoalrun: rank 1 was killed by signal 9 (Killed)\n    --- end of @/common-killed.log\n    --- @/common-killed.again.log\n    100%: Checks: 3, Failures: 0, Errors: 0\n    --- end of @/common-killed.again.log\nfailed:\n  common/segv: ended by signal 11\n3 passed, 1 failed
ENDS
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
rerun_max=${TEST_RERUN:-5}

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
# By program, of its last run: what was said of it, and its tests.
declare -A what_of=() good_of=() bad_of=() skips_of=() crashed=()
declare -A first_of=() # what was said of the first run of one that runs again
passed=0 failed=0 skipped=0 finished=0 total=0

name_of() {
    local name=${1#"$build"/}
    printf '%s' "${name#tests/}"
}

# Print the path of a program's log: of its first run, or, with "again", of its second.
log_of() {
    local name
    name=$(name_of "$1")
    printf '%s' "$logs/${name//\//-}${2:+.$2}.log"
}

# timeout puts the program into a process group of its own and passes on what it is sent, so that
# ending it ends the program's children too.
start() {
    local log command=("$1")
    log=$(log_of "$1" "${first_of[$1]:+again}")
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

# Whether a program died of a fault of its own or of what it had started, or a sanitizer found one: by
# its exit status, and by what Check, shoalrun, tests/lib/process.c and tests/python/suite.py say. A test
# that fails first does not see how a daemon ended; its ranks say that it has.
is_crash() {
    local words='[A-Za-z]Sanitizer: |: runtime error: |(Received|Received unexpected|by) signal (4|6|7|8|11|31)\b'
    words+='|Early exit with return value (66|97|98|99)$|by the status of a sanitizer'
    words+='|exitcode *: -(4|6|7|8|11|31)\b' # torchrun's
    words+='|the daemon of this node \(socket [^)]*\) went away'
    case $1 in
    66 | 97 | 98 | 99 | 132 | 134 | 135 | 136 | 139 | 159) return 0 ;;
    *) grep -aqE "$words" "$2" ;;
    esac
}

# Count a run of a program in place of its run before.
count() {
    local program=$1 good=$2 bad=$3 skips=$4
    passed=$((passed + good - ${good_of[$program]:-0}))
    failed=$((failed + bad - ${bad_of[$program]:-0}))
    skipped=$((skipped + skips - ${skips_of[$program]:-0}))
    good_of[$program]=$good bad_of[$program]=$bad skips_of[$program]=$skips
}

skips_in() {
    grep -aE '^SKIP [^:]+: ' "$1" | LC_ALL=C sort -u || true
}

finish() {
    local pid=$1 status=$2 program log lines checks bad skips ms what=ok
    program=${program_of[$pid]}
    ms=$(((${EPOCHREALTIME/./} - start_of[$pid]) / 1000))
    unset "program_of[$pid]" "start_of[$pid]"
    log=$(log_of "$program" "${first_of[$program]:+again}")

    read -r lines checks bad < <(totals "$log")
    skips=$(skips_in "$log" | wc -l)
    if ((status == 124 || status == 137)); then
        what="no end after $timeout_s s"
    elif ((status > 128)); then
        what="ended by signal $((status - 128))"
    elif ((bad > 0)); then
        what=FAILED
    elif ((status != 0)); then
        what="exit status $status"
    elif ((lines == 0 && skips == 0)); then
        what="no totals"
    fi
    # What went wrong outside of the tests that were counted is one more failure.
    [[ $what == ok || $what == FAILED ]] || bad=$((bad + 1)) checks=$((checks + 1))
    # A test that skips itself has passed for Check.
    local good=$((checks - bad - skips))
    ((good >= 0)) || good=0
    count "$program" "$good" "$bad" "$skips"
    what_of[$program]=$what
    [[ $what == ok ]] || ! is_crash "$status" "$log" || crashed[$program]=1
    [[ ${first_of[$program]:-} ]] || finished=$((finished + 1))

    progress_erase
    printf '%-36s %4d passed %3d failed %3d skipped %5d.%01d s  %s\n' "$(name_of "$program")" \
        "$good" "$bad" "$skips" $((ms / 1000)) $((ms % 1000 / 100)) "$what${first_of[$program]:+, alone}"
    [[ $what == ok ]] || show "$log"
    progress
}

show() {
    printf -- '--- %s\n' "$1"
    cat "$1"
    printf -- '--- end of %s\n' "$1"
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

# Run those that failed once more, if they are few.
rerun() {
    local program again=()
    for program in "$@"; do
        [[ ${what_of[$program]} == ok || ${crashed[$program]:-} ]] || again+=("$program")
    done
    if ((${#again[@]} > rerun_max)); then
        ((rerun_max == 0)) || printf 'none runs again: more than %d failed (TEST_RERUN)\n' "$rerun_max"
        return
    fi
    for program in "${again[@]}"; do
        first_of[$program]=${what_of[$program]}
        run 1 "$program"
    done
}

# Print what a function says of each program, under a heading where there is anything.
list() {
    local heading=$1 say=$2 program said
    shift 2
    said=$(for program in "$@"; do "$say" "$program"; done)
    [[ ! $said ]] || printf '%s:\n%s\n' "$heading" "$said"
}

say_skips() {
    ((${skips_of[$1]} > 0)) || return 0
    skips_in "$(log_of "$1" "${first_of[$1]:+again}")" | sed "s,^SKIP ,  $(name_of "$1"): ,"
}

# Indented, so that nothing in the outputs is taken for the end of the list, or for totals.
say_unsteady() {
    [[ ${first_of[$1]:-} && ${what_of[$1]} == ok ]] || return 0
    printf '  %s: %s; alone: ok\n' "$(name_of "$1")" "${first_of[$1]}"
    { show "$(log_of "$1")" && show "$(log_of "$1" again)"; } | sed 's/^/    /'
}

say_failures() {
    [[ ${what_of[$1]} != ok ]] || return 0
    local logs_of=("$(log_of "$1")") log
    [[ ! ${first_of[$1]:-} ]] || logs_of+=("$(log_of "$1" again)")
    printf '  %s: %s\n' "$(name_of "$1")" "${first_of[$1]:+${first_of[$1]}; alone: }${what_of[$1]}"
    for log in "${logs_of[@]}"; do failures "$log"; done | awk '!seen[$0]++ { print "    " $0 }'
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
rerun "${ours[@]}" "${torchs[@]}"
progress_erase

list skipped say_skips "${ours[@]}" "${torchs[@]}"
# Once more, where the end of a long output shows it.
list unsteady say_unsteady "${ours[@]}" "${torchs[@]}"
list failed say_failures "${ours[@]}" "${torchs[@]}"
printf '%d passed, %d failed' "$passed" "$failed"
((skipped == 0)) || printf ', %d skipped' "$skipped"
printf '\n'
((failed == 0 && passed > 0))
