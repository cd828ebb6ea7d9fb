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
