#!/usr/bin/env bash
# The part of check-deploy.sh about doc/first-training.md: types its blocks of commands into shells on
# two nodes, in the page's order, and looks at the training that comes of it.
#
#   page.sh KIND FOLDER COMMAND_A... and COMMAND_B...
#
# KIND: "deb", the blocks of Debian's packages, or "pip". FOLDER: of its own, there. Each command runs
# bash on a node, in the folder where the page's reader would be; page-nodes.sh has them. What its scp
# leaves in FOLDER/outbox for the other node is brought there by FOLDER/deliver after each block;
# FOLDER/browse looks at an address of node a in a browser.
# "PASS what" or "FAIL what" for each block and each look, and how long all commands took.
set -uo pipefail

(($# >= 5)) || exit 2
page=$(dirname "$0")/../../doc/first-training.md
kind=$1 folder=$2
shift 2
nodes=(a b)
limit_s=300 # of a block
declare -A input output pids

# The blocks of this kind: "NODE" lines and their text, each ended by a line of a single character 30.
blocks() {
    awk -v kind="$kind" '
        /^```sh / && !inside {
            where = $2 == "pip" ? $3 : $2
            wanted = (kind == "pip") == ($2 == "pip")
            if (kind == "pip" && $0 == "```sh both") wanted = -1
            inside = 1
            text = ""
            next
        }
        /^```$/ && inside {
            inside = 0
            script = text ~ /^cat >train[.]py/
            if (wanted == 1 || (wanted == -1 && script))
                printf "%s\n%s\036\n", where, text
            next
        }
        inside { text = text $0 "\n" }' "$page"
}

start_shell() {
    local node=$1
    shift
    mkfifo "$folder/$node.in"
    "$@" <"$folder/$node.in" >"$folder/$node.out" 2>&1 &
    pids[$node]=$!
    exec {descriptor}>"$folder/$node.in"
    input[$node]=$descriptor
    output[$node]=$folder/$node.out
}

# shellcheck disable=SC2317  # the trap calls it
end() {
    local node descriptor
    for node in "${nodes[@]}"; do
        descriptor=${input[$node]:-}
        [[ ! $descriptor ]] || exec {descriptor}>&-
    done
    for node in "${nodes[@]}"; do
        [[ ! ${pids[$node]:-} ]] || kill "${pids[$node]}" 2>/dev/null
    done
    wait
}
trap end EXIT
trap 'exit 143' TERM INT HUP

number=0
# Type text into a node's shell, so that its last status follows; `set -e` is a reader who stops there.
type_into() {
    local node=$1 text=$2
    printf '%s\n' "set -e" "$text" "set +e" "echo '#done' $number" >&"${input[$node]}"
}

await() {
    local node=$1 deadline=$((SECONDS + limit_s))
    until grep -q "^#done $number\$" "${output[$node]}"; do
        if ((SECONDS >= deadline)) || ! kill -0 "${pids[$node]}" 2>/dev/null; then
            tail -n 15 "${output[$node]}"
            return 1
        fi
        sleep 0.2
    done
}

# A block on its nodes at once.
run() {
    local what=$1 where=$2 text=$3 node status=0
    number=$((number + 1))
    for node in "${nodes[@]}"; do
        [[ $where != both && $where != "$node" ]] || type_into "$node" "$text"
    done
    for node in "${nodes[@]}"; do
        [[ $where != both && $where != "$node" ]] || await "$node" || status=1
    done
    if ((status)); then
        printf 'FAIL %s\n' "$what"
        exit 1
    fi
    "$folder/deliver" || exit 1
    printf 'PASS %s\n' "$what"
}

# What a browser would get, from the page of node a, until it is there.
look() {
    cat <<'END'
python3 - <<'PYTHON' && echo '#seen'
import json, time, urllib.request
def get(path):
    return urllib.request.urlopen("http://127.0.0.1:7071" + path, timeout=5).read().decode()
deadline = time.monotonic() + 100
while True:
    try:
        assert "<html" in get("/"), "no page"
        status = json.loads(get("/status.json"))
        peers = [peer["state"] for peer in status["peers"]]
        jobs = [(job["name"], job["world_size"]) for job in status["jobs"]]
        collectives = [job["collectives"] for job in status["jobs"]]
        print(peers, jobs, collectives)
        if "up" in peers and any(size == 4 for _, size in jobs) and max(collectives) > 100:
            break
    except (OSError, AssertionError, KeyError) as problem:
        print(repr(problem))
    if time.monotonic() > deadline:
        raise SystemExit("nothing is seen")
    time.sleep(1)
PYTHON
END
}

loss_falls() {
    cat <<'END'
until grep -q 'step [1-9]00: loss' train.log; do
    kill -0 $! || { cat train.log; false; }
    sleep 1
done
tail -n 3 train.log
END
}

commands_a=()
while [[ $1 != and ]]; do
    commands_a+=("$1")
    shift
done
shift
start_shell a "${commands_a[@]}"
start_shell b "$@"
# Of what the walk begins with, and of what it ends with.
versions() {
    number=$((number + 1))
    type_into "$1" 'cat /etc/debian_version; ldd --version | head -n 1; ! command -v python3 >/dev/null || python3 --version'"$2"
    await "$1" || return
    awk -v number="$number" '/^#done/ { if ($2 == number) exit; said = ""; next }
        { said = said (said ? ", " : "     ") $0 } END { print said }' "${output[$1]}"
}
versions a ''
began=$SECONDS
while IFS= read -r where && IFS= read -r -d $'\036' text && IFS= read -r; do
    first=${text%%$'\n'*}
    run "$where: ${first:0:70}" "$where" "$text"
done < <(blocks)
((number > 0)) || {
    printf 'FAIL the page has blocks of %s\n' "$kind"
    exit 1
}
run 'a: the page shows the job of four ranks on both' a "$(look)"
printf '     %d s of commands, from the first to what a browser gets\n' $((SECONDS - began))
what='a: a browser shows it: steps, both machines, bytes on the link, no errors' status=0
"$folder/browse" http://127.0.0.1:7071/ >"$folder/browsed" 2>&1 || status=$?
sed 's/^/     /' "$folder/browsed"
case $status in
0) printf 'PASS %s\n' "$what" ;;
77) printf 'SKIP %s\n' "$what" ;;
*)
    printf 'FAIL %s\n' "$what"
    exit 1
    ;;
esac
run 'a: the loss is written' a "$(loss_falls)"
versions a "; python3 -c 'import torch, shoal; print(\"torch\", torch.__version__); print(\"shoal\", shoal.__version__)'"
