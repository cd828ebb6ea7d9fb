#!/usr/bin/env bash
# Hold the rules of the house that a compiler does not: which floor may include and call which, where
# each outside library lives, and what no file may do. Prints a line per violation.
#
#   scripts/check-floors.sh [BUILD]          check this tree, and its objects under BUILD (build)
#   scripts/check-floors.sh --sources ROOT   check another tree, without the calls
#   scripts/check-floors.sh --self-test      show that each rule catches what it is there for
#   scripts/check-floors.sh --floors         print the table of floors
#
# The calls are scripts/file-graph.py's part, which asks for the table of floors.
set -euo pipefail

LINES_MAX=700

# The floor of every file, first match wins. `pure` files do no I/O, take no locks, ask no clock.
floors() {
    cat <<'TABLE'
common/base/*               0
common/log/*                0
common/text/*               0
common/auth/*               1
common/config/*             1
common/format/*             1
common/memory/*             1
common/reduce/*             1
common/transport/*          2
server/exchange/*           3 pure
server/jobs/*               3 pure
server/coordinator/*        3 pure
server/commands/*           3 pure
server/waits/*              3 pure
server/page/*               3 pure
server/engine/*             4
server/control/*            4
server/status/*             4
server/sandbox/*            4
server/shoald.c             5
server/shoalctl/*           5
worker/shoal.h              0
worker/fusion/*             3 pure
worker/request/*            3 pure
worker/meeting/*            3 pure
worker/drive/*              4
worker/job/*                4
worker/launch/*             4
worker/progress/*           3 pure
worker/device/*             4
worker/api/*                5
worker/mpi/*                5
worker/programs/*           5
worker/examples/*           5
TABLE
}

# Outside libraries: the headers, and the files that may include them.
homes() {
    cat <<'TABLE'
rdma/*      common/transport/transport_*.[ch]
event2/*    server/control/* server/shoald.c
jansson.h   common/config/* common/format/message_fields.c server/shoalctl/*
jansson.h   worker/programs/shoalrun/launcher_config.c
hwloc*      common/memory/topology.c
sodium*     common/auth/auth.c common/auth/secret.c server/page/page.c
seccomp.h   server/sandbox/sandbox.c
openssl/*   common/auth/openssl.h
*/openssl.h common/auth/credentials.c common/auth/seal.c common/auth/tls.c
cuda*.h     worker/device/cuda_driver.h
*/cuda_driver.h  worker/device/device_cuda.c tests/lib/cuda/* tests/bench/bench_gpu*.c
check.h     tests/*.[ch]
TABLE
}

# What a pure file may not include.
IMPURE='pthread.h threads.h time.h sys/time.h semaphore.h poll.h sys/*.h netinet/*.h linux/*.h'
IMPURE+=' fcntl.h unistd.h signal.h netdb.h arpa/*.h common/transport/transport_*.h'

# Functions that have one home, or none: name, where it may be called (folder globs), what to say.
# File, line, then the words of every call are matched after comments and strings are gone.
calls() {
    cat <<'TABLE'
getenv         common/base/env.c tests/*    only common/base/env.c reads the environment
secure_getenv  common/base/env.c tests/*    only common/base/env.c reads the environment
sleep          tests/*                 sleeping is no synchronisation: wait for the event
usleep         tests/*                 sleeping is no synchronisation: wait for the event
nanosleep      tests/*                 sleeping is no synchronisation: wait for the event
clock_nanosleep tests/*                sleeping is no synchronisation: wait for the event
thrd_sleep     tests/*                 sleeping is no synchronisation: wait for the event
TABLE
}

# Mutable data at file scope that is allowed: object, symbol.
data_allowed() {
    cat <<'TABLE'
worker/job/error_text.c kept
worker/job/forking.c open_jobs
worker/mpi/process.c process
TABLE
}

problems=0
problem() {
    printf '%s\n' "$1"
    problems=$((problems + 1))
}

# matches TEXT GLOB... : whether one of the globs fits. A glob's * takes slashes too.
matches() {
    local text=$1 glob
    shift
    for glob in "$@"; do
        # shellcheck disable=SC2053  # the right side is a glob on purpose
        [[ $text == $glob ]] && return 0
    done
    return 1
}

# any_matches GLOB TEXT... : whether the glob fits one of the texts.
any_matches() {
    local glob=$1 text
    shift
    for text in "$@"; do
        # shellcheck disable=SC2053
        [[ $text == $glob ]] && return 0
    done
    return 1
}

declare -A floor_of pure_of included

read_floors() {
    local files=$1 file glob floor word
    local -a globs=() values=() words=() used=()
    while read -r glob floor word; do
        globs+=("$glob") values+=("$floor") words+=("$word")
    done < <(floors)
    for file in $files; do
        [[ $file == tests/* ]] && continue
        local i found=
        for i in "${!globs[@]}"; do
            # shellcheck disable=SC2053
            if [[ $file == ${globs[i]} ]]; then
                floor_of[$file]=${values[i]}
                pure_of[$file]=${words[i]}
                found=1 used[i]=1
                break
            fi
        done
        [[ $found ]] || problem "$file: no floor is known for it: add it to the table in scripts/check-floors.sh"
    done
    for i in "${!globs[@]}"; do
        [[ ${used[i]:-} ]] || unused floors "${globs[i]}"
    done
}

unused() {
    problem "scripts/check-floors.sh: the table of $1: $2 matches nothing: drop it"
}

# The globs of the other tables: their table, then the glob.
other_globs() {
    {
        homes | awk '{ print "headers", $1; for (i = 2; i <= NF; i++) print "homes", $i }'
        calls | awk '{ for (i = 2; i <= NF && $i ~ /\//; i++) print "calls", $i }'
        data_allowed | awk '{ print "data", $1 }'
    } | LC_ALL=C sort -u
}

# Each fits a source, or a header that is included.
check_globs() {
    local files=$1 table glob
    local -a sources
    read -ra sources <<<"${files//$'\n'/ }"
    while read -r table glob; do
        if [[ $table == headers ]]; then
            any_matches "$glob" "${!included[@]}" || unused "$table" "$glob"
        else
            any_matches "$glob" "${sources[@]}" || unused "$table" "$glob"
        fi
    done < <(other_globs)
}

# Lines of "FILE LINE include NAME", "FILE LINE quoted NAME" and "FILE LINE call NAME".
# $1: the called functions to look for, as an alternation.
scan() {
    local functions=$1
    shift
    awk -v functions="$functions" '
        FNR == 1 { comment = 0 }
        {
            text = $0
            if (!comment && match(text, /^[ \t]*#[ \t]*include[ \t]*[<"][^>"]*[>"]/)) {
                name = substr(text, RSTART, RLENGTH)
                kind = name ~ /"$/ ? "quoted" : "include"
                gsub(/^[^<"]*[<"]|[>"]$/, "", name)
                print FILENAME, FNR, kind, name
                next
            }
            # Cut strings, characters and comments; what is left is code.
            code = ""
            while (text != "") {
                if (comment) {
                    end = index(text, "*/")
                    if (!end) { text = ""; break }
                    text = substr(text, end + 2)
                    comment = 0
                } else if (match(text, /"([^"\\]|\\.)*"|\047([^\047\\]|\\.)*\047|\/\/|\/\*/)) {
                    code = code substr(text, 1, RSTART - 1) " "
                    token = substr(text, RSTART, RLENGTH)
                    text = substr(text, RSTART + RLENGTH)
                    if (token == "//") text = ""
                    if (token == "/*") comment = 1
                } else {
                    code = code text
                    text = ""
                }
            }
            while (match(code, /[A-Za-z_][A-Za-z_0-9]*[ \t]*\(/)) {
                name = substr(code, RSTART, RLENGTH)
                sub(/[ \t]*\($/, "", name)
                if (name ~ "^(" functions ")$") print FILENAME, FNR, "call", name
                code = substr(code, RSTART + RLENGTH)
            }
        }' "$@"
}

check_quoted() {
    local file=$1 line=$2 name=$3
    if [[ $name != */* || $name == ../* || $name == ./* ]]; then
        problem "$file:$line: \"$name\" does not name its folder"
        return
    fi
    if [[ ! -e $name ]]; then
        problem "$file:$line: \"$name\" is not in the tree (an outside header goes in <>)"
        return
    fi
    local from=${file%%/*} to=${name%%/*}
    [[ $from == tests ]] && return
    case $from:$to in
    server:worker | worker:server | common:server | common:worker | *:tests)
        problem "$file:$line: $from/ never includes $to/ (\"$name\")"
        return
        ;;
    esac
    if [[ $from == worker ]] && matches "$name" 'common/transport/*'; then
        problem "$file:$line: the library loads no fabric (\"$name\")"
    fi
    if ((${floor_of[$file]:-9} < ${floor_of[$name]:-0})); then
        problem "$file:$line: floor ${floor_of[$file]} includes \"$name\" of floor ${floor_of[$name]}: includes point down"
    fi
}

check_home() {
    local file=$1 line=$2 name=$3 header home
    local -a allowed=()
    while read -r header home; do
        # shellcheck disable=SC2053
        if [[ $name == $header ]]; then
            read -ra words <<<"$home"
            allowed+=("${words[@]}")
        fi
    done < <(homes)
    ((${#allowed[@]} == 0)) && return
    matches "$file" "${allowed[@]}" 'tests/*' ||
        problem "$file:$line: <$name> is at home in ${allowed[*]}"
}

check_pure() {
    local file=$1 line=$2 name=$3
    local -a impure
    read -ra impure <<<"$IMPURE"
    if [[ ${pure_of[$file]:-} == pure ]] && matches "$name" "${impure[@]}"; then
        problem "$file:$line: a pure file includes $name"
    fi
}

check_call() {
    local file=$1 line=$2 name=$3 rest
    if [[ $name == clock_now_ns ]]; then
        [[ ${pure_of[$file]:-} != pure ]] ||
            problem "$file:$line: a pure file asks the clock: hand it now_ns"
        return
    fi
    rest=$(calls | awk -v name="$name" '$1 == name { $1 = ""; print }')
    local -a words allowed=()
    read -ra words <<<"$rest"
    local i
    for ((i = 0; i < ${#words[@]}; i++)); do
        [[ ${words[i]} == */* ]] || break
        allowed+=("${words[i]}")
    done
    matches "$file" "${allowed[@]}" || problem "$file:$line: $name(): ${words[*]:i}"
}

check_sources() {
    local files=$1 functions file line kind name
    functions=$(calls | awk '{ printf "%s|", $1 } END { printf "clock_now_ns" }')
    # shellcheck disable=SC2086  # a list of file names without blanks
    while read -r file line kind name; do
        case $kind in
        quoted)
            included[$name]=1
            check_quoted "$file" "$line" "$name"
            check_home "$file" "$line" "$name"
            ;;
        include)
            included[$name]=1
            check_home "$file" "$line" "$name"
            ;;
        call) check_call "$file" "$line" "$name" ;;
        esac
        [[ $kind == call ]] || check_pure "$file" "$line" "$name"
    done < <(scan "$functions" $files)
}

check_lengths() {
    local count file
    while read -r count file; do
        ((count <= LINES_MAX)) ||
            problem "$file: $count lines, $LINES_MAX is the most: split it by noun"
    done < <(find . -path ./build -prune -o -path ./.git -prune -o -type f \
        \( -name '*.[ch]' -o -name '*.sh' -o -name '*.py' \) -exec wc -l {} + |
        awk '$2 != "total" { sub(/^\.\//, "", $2); print }')
}

# Data that can be written, by section, so that constant tables of pointers (.data.rel.ro) pass.
# Only objects newer than their source; a tree that has not been built is checked by the next build.
check_data() {
    command -v objdump >/dev/null || return 0
    local object source symbol section
    for object in build/obj/server/*.o build/obj/server/*/*.o build/obj/common/*/*.o build/obj/worker/*/*.o; do
        source=${object#build/obj/}
        source=${source%.o}.c
        [[ -e $object && -e $source && $object -nt $source ]] || continue
        while read -r section symbol; do
            data_allowed | grep -qxF "$source ${symbol%%.*}" ||
                problem "$source: ${symbol%%.*} is mutable and outlives its function ($section)"
        done < <(objdump -t "$object" | awk '
            NF > 3 && $NF !~ /^\./ && $(NF-2) ~ /^(\.data|\.bss|\.tdata|\.tbss|\*COM\*)/ &&
            $(NF-2) !~ /^\.data\.rel\.ro/ { print $(NF-2), $NF }')
    done
}

check_tree() {
    cd "$1"
    local files
    files=$(find server worker common tests -name '*.[ch]' 2>/dev/null | LC_ALL=C sort || true)
    if [[ -z $files ]]; then
        problem "no sources under $1"
    else
        read_floors "$files"
        check_sources "$files"
        check_globs "$files"
    fi
    check_lengths
    check_data
    if ((problems > 0)); then
        printf 'check-floors: %d problem(s)\n' "$problems"
        return 1
    fi
}

file_graph() {
    "${PYTHON:-python3}" -B "$(dirname "$0")/file-graph.py" "$@"
}

# --- self-test: a small good tree, and each violation put into a copy of it ---

self_test_tree() {
    mkdir -p server/{control,engine,exchange,jobs} worker/{device,job,request,fusion,examples/digits} \
        common/{base,log,format,transport} tests/common/base
    printf '#include <stdio.h>\n' >common/base/error.h
    printf '#include "common/base/error.h"\n/* getenv("X"); sleep(1) */\n' >common/log/log.c
    printf 'const char *s = "sleep(1) getenv(2)"; // usleep()\n' >common/base/clock.c
    printf '#include <rdma/fabric.h>\n' >common/transport/transport_libfabric.c
    printf '#include "common/base/error.h"\n' >common/transport/transport.h
    printf 'int memory;\n' >common/transport/transport_memory.h
    printf '#include <stdlib.h>\nchar *f(void) { return getenv("A"); }\n' >common/base/env.c
    printf '#include "common/base/error.h"\nint thread_sleep(int a);\n' >server/exchange/slot.h
    printf '#include "server/exchange/slot.h"\n#include <event2/event.h>\n' >server/control/control.c
    printf 'int control;\n' >server/control/control.h
    printf '#include "common/transport/transport.h"\n#include <pthread.h>\n' >server/engine/engine.c
    printf 'int open;\n' >worker/shoal.h
    printf 'int batch;\n' >worker/device/cuda_driver.h
    printf '#include "worker/shoal.h"\n' >worker/examples/digits/main.c
    printf '#include "server/exchange/slot.h"\n#include "worker/shoal.h"\n#include <check.h>\n' >tests/common/base/test_error.c
    self_test_globs
}

# What each glob of the tables fits, where the tree has nothing yet: a glob that fits nothing is refused.
self_test_globs() {
    local table glob header home file
    {
        floors | awk '{ print $1 }'
        other_globs | awk '$1 != "headers" { print $2 }'
    } | while read -r glob; do
        compgen -G "$glob" >/dev/null && [[ $glob != */\* ]] && continue
        file=${glob//\[ch\]/c}
        [[ $file != *\* ]] || file=${file%\**}x${file##*\*}
        [[ $file == *.[ch] ]] || file+=.c
        file=${file//\*/x}
        mkdir -p "${file%/*}"
        : >>"$file"
    done
    while read -r header home; do
        printf '#include <%s>\n' "${header//\*/x}"
    done < <(homes) >tests/common/base/headers.c
}

self_test_expect() {
    local title=$1 expected=$2 file=$3 text=$4 copy output status=0
    copy=$(mktemp -d "$scratch/XXXXXX")
    (cd "$copy" && self_test_tree)
    if [[ $title == unused* ]]; then
        # What the glob fits is taken away.
        rm -rf "${copy:?}/$file"
        sed -i "\\#<$file#d" "$copy/tests/common/base/headers.c"
    else
        mkdir -p "$copy/$(dirname "$file")"
        printf '%b\n' "$text" >>"$copy/$file"
    fi
    if [[ $title == data* ]]; then
        if ! command -v cc objdump >/dev/null; then
            return
        fi
        mkdir -p "$copy/build/obj/$(dirname "$file")"
        cc -fPIC -c "$copy/$file" -o "$copy/build/obj/${file%.c}.o"
        touch -d '1 minute ago' "$copy/$file"
    fi
    output=$("$0" --sources "$copy" 2>&1) || status=$?
    tested=$((tested + 1))
    if [[ -z $expected && $status == 0 && -z $output ]]; then
        return
    fi
    if [[ -n $expected && $status == 1 && $output == *"$file"*"$expected"* ]] &&
        [[ $(grep -c . <<<"$output") == 2 ]]; then
        return
    fi
    printf 'check-floors self-test: %s: exit %d, expected "%s", got:\n%s\n' \
        "$title" "$status" "$expected" "$output"
    failed=$((failed + 1))
}

self_test() {
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    tested=0 failed=0
    self_test_expect "good tree" "" common/log/log.c ''
    self_test_expect "unknown file" "no floor is known" common/gadget.c 'int gadget;'
    self_test_expect "upwards" "includes point down" common/log/log.h '#include "common/transport/transport.h"'
    self_test_expect "upwards in server" "includes point down" server/exchange/slot.c '#include "server/control/control.h"'
    self_test_expect "no folder" "does not name its folder" common/log/log.c '#include "error.h"'
    self_test_expect "parent folder" "does not name its folder" common/log/log.c '#include "../common/error.h"'
    self_test_expect "missing" "is not in the tree" common/log/log.c '#include "common/nothing.h"'
    self_test_expect "server to worker" "never includes worker/" server/engine/engine.c '#include "worker/shoal.h"'
    self_test_expect "worker to server" "never includes server/" worker/job/client.c '#include "server/exchange/slot.h"'
    self_test_expect "common to server" "never includes server/" common/transport/transport.h '#include "server/exchange/slot.h"'
    self_test_expect "to tests" "never includes tests/" server/engine/engine.c '#include "tests/common/base/test_error.c"'
    self_test_expect "worker to transport" "loads no fabric" worker/job/client.c '#include "common/transport/transport.h"'
    self_test_expect "libfabric" "is at home in" server/engine/engine.c '#include <rdma/fi_domain.h>'
    self_test_expect "libfabric in the interface" "is at home in" common/transport/transport.h '#include <rdma/fabric.h>'
    self_test_expect "libevent" "is at home in" server/engine/engine.c '  #  include <event2/event.h>'
    self_test_expect "jansson" "is at home in" server/engine/engine.c '#include <jansson.h>'
    self_test_expect "hwloc" "is at home in" server/engine/reducer.c '#include <hwloc.h>'
    self_test_expect "libsodium" "is at home in" server/control/peer.c '#include <sodium.h>'
    self_test_expect "CUDA" "is at home in" worker/request/staging.c '#include <cuda.h>'
    self_test_expect "CUDA's declarations" "is at home in" worker/job/client.c '#include "worker/device/cuda_driver.h"'
    self_test_expect "Check" "is at home in" worker/request/staging.c '#include <check.h>'
    self_test_expect "thread in pure" "a pure file includes" server/exchange/slot.c '#include <pthread.h>'
    self_test_expect "clock in pure" "a pure file includes" worker/fusion/fusion.c '#include <time.h>'
    self_test_expect "transport in pure" "a pure file includes" server/jobs/job.c '#include "common/transport/transport_memory.h"'
    self_test_expect "now in pure" "asks the clock" server/jobs/job.c 'long f(void) { return clock_now_ns(); }'
    self_test_expect "getenv" "only common/base/env.c" server/engine/engine.c 'char *f(void) { return getenv ("A"); }'
    self_test_expect "sleep" "no synchronisation" worker/job/client.c 'void f(void) { sleep(1); }'
    self_test_expect "usleep" "no synchronisation" common/log/log.c 'void f(void) { /* x */ usleep(1); }'
    self_test_expect "nanosleep" "no synchronisation" server/engine/engine.c 'int i = nanosleep(0, 0);'
    self_test_expect "long file" "lines, $LINES_MAX is the most" common/log/log.c "$(printf '\\n%.0s' $(seq $LINES_MAX))"
    self_test_expect "long script" "lines, $LINES_MAX is the most" scripts/long.sh "$(printf '\\n%.0s' $(seq $LINES_MAX))"
    self_test_expect "unused, floors" "matches nothing" worker/fusion ''
    self_test_expect "unused, homes" "matches nothing" common/memory/topology.c ''
    self_test_expect "unused, headers" "matches nothing" hwloc ''
    self_test_expect "unused, data" "matches nothing" worker/job/error_text.c ''
    self_test_expect "data, none" "" common/format/wire.c 'static const char *const names[] = {"a", "b"};\nconst char *f(int i) { return names[i]; }'
    self_test_expect "data, global" "is mutable" common/format/wire.c 'int count = 3;'
    self_test_expect "data, common" "is mutable" common/format/wire.c 'int count;'
    self_test_expect "data, static" "is mutable" common/format/wire.c 'static int count;\nint f(void) { return count++; }'
    self_test_expect "data, in a function" "is mutable" common/format/wire.c 'int f(void) { static int count = 4; return count++; }'
    self_test_expect "data, of a thread" "is mutable" common/format/wire.c '_Thread_local int count;'
    if ((failed > 0)); then
        printf 'check-floors self-test: %d of %d failed\n' "$failed" "$tested"
        return 1
    fi
    printf 'check-floors self-test: %d cases\n' "$tested"
}

case ${1:-} in
--floors) floors ;;
--sources) check_tree "$2" ;;
--self-test)
    self_test
    file_graph --self-test
    ;;
*)
    status=0
    file_graph --build "${1:-build}" || status=$?
    check_tree "$(dirname "$0")/.."
    exit "$status"
    ;;
esac
