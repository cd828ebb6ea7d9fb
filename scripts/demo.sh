#!/usr/bin/env bash
# The demo: train on two nodes of this machine, check the result, and again with other buffers.
# usage: scripts/demo.sh [BUILD]      Exit status: 0 when every check passed.
set -euo pipefail

build=${1:-build}
directory=$(mktemp -d "${TMPDIR:-/tmp}/shoal-demo.XXXXXX")
trap 'rm -rf "$directory"' EXIT

train() {
    "$build/bin/shoalrun" --nodes 2 -n 2 -- "$build/bin/shoal-digits" "$@"
}

# With daemons that their jobs outlive; the second one is killed in the middle.
train_without_a_daemon() {
    local run daemons
    echo '{"recovery": true, "timeouts": {"restart_ms": 60000}}' >"$directory/recovery.json"
    : >"$directory/log"
    "$build/bin/shoalrun" --nodes 2 -n 2 --config "$directory/recovery.json" -- \
        "$build/bin/shoal-digits" --no-verify --save "$directory/third.{rank}" \
        >"$directory/log" 2>&1 &
    run=$!
    # shellcheck disable=SC2016 # tail ends with the run, the other end with the line
    timeout 60 sh -c 'tail -n +1 -f --pid="$0" "$1" | sed "/^epoch   5/q" >/dev/null' "$run" \
        "$directory/log" || true
    read -r -a daemons <"/proc/$run/task/$run/children" || true
    kill -KILL "${daemons[1]:-$run}" || true
    wait "$run" && grep 'starting it again' "$directory/log"
}

# The files are compared here, so that this check does not rest on shoal's own collectives.
compare() {
    local label=$1 rank
    shift
    for rank in "$@"; do
        if ! cmp "$directory/first.0" "$rank"; then
            echo "FAIL  $label"
            exit 1
        fi
    done
    echo "PASS  $label"
}

echo "demo: two daemons as two nodes, joined by libfabric tcp over loopback; four workers, two a node"
train --save "$directory/first.{rank}" || exit $?
compare "the files that the four ranks saved are equal" "$directory"/first.{1..3}

echo "demo: the same as a second job, with fusion buffers of another size"
if ! train --no-verify --threshold-bytes 300000 --first-buffer-bytes 100000 \
    --save "$directory/second.{rank}" >"$directory/log" 2>&1; then
    cat "$directory/log"
    exit 1
fi
compare "a second job with other fusion buffers saved the same bits" "$directory"/second.{0..3}

echo "demo: the same once more; the daemon of one node is killed in the middle, and started again"
if ! train_without_a_daemon; then
    cat "$directory/log"
    exit 1
fi
compare "a third job, whose daemon was killed by SIGKILL, saved the same bits" \
    "$directory"/third.{0..3}
