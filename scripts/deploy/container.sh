#!/usr/bin/env bash
# The part of check-deploy.sh about containers: the image of config/container built with buildah, and
# run with podman and crun, on a read-only root as the image's user.
#
#   container.sh ROOT FOLDER    ROOT: a bare Debian 12, the base of the image; FOLDER: for the images and
#                               all else, made here and removed
#
# Two containers with daemons are two nodes: each has a network namespace, joined by a virtual cable.
# "PASS what" or "FAIL what" for each thing. Exit status 77: a tool is missing, or may not be used here.
set -uo pipefail

cannot() {
    printf 'container: %s\n' "$*" >&2
    exit 77
}

(($# == 2)) || cannot "usage: $0 ROOT FOLDER"
root=$(realpath "$1") folder=$(realpath "$2") || exit 1
((EUID == 0)) || cannot "must be root"
self=$(realpath "$0")
cd "$(dirname "$self")/../.." || exit 1
# Mounts of its own, which end with it, and the unified tree of control groups where crun looks for it.
if [[ ! ${SHOAL_DEPLOY_MOUNTS:-} ]]; then
    SHOAL_DEPLOY_MOUNTS=own exec unshare --mount "$self" "$root" "$folder"
fi
if [[ $(stat --file-system --format %T /sys/fs/cgroup) != cgroup2fs ]]; then
    mount -t cgroup2 cgroup2 /sys/fs/cgroup || cannot "there is no unified tree of control groups"
fi
for command in buildah podman crun ip; do
    command -v "$command" >/dev/null || cannot "$command is missing: scripts/install-deps.sh --deploy"
done
mkdir "$folder" || exit 1
# shellcheck source=scripts/packages/inside.sh
. scripts/packages/inside.sh
# shellcheck disable=SC2034  # those of inside.sh
log=$folder/log LIMIT_S=60
names=(a b)
id=shoal-deploy-$$
store=(--root "$folder/store" --runroot "$folder/run" --storage-driver overlay)
# No control groups and no logs outside of the folder; nothing of the machine's own podman is touched.
podman=(podman "${store[@]}" --tmpdir "$folder/tmp" --cgroup-manager cgroupfs --events-backend none
    --runtime crun)
# What a machine that is a container itself may give: podman asks for more limits and for control groups.
given=(--cgroups disabled --ulimit "nofile=$(ulimit -Hn):$(ulimit -Hn)" --ulimit nproc=4096:4096)

# shellcheck disable=SC2317  # the trap calls it
end() {
    local name
    "${podman[@]}" rm --all --force --time 0 >/dev/null 2>&1
    for name in "${names[@]}"; do
        ip netns delete "$id-$name" 2>/dev/null
    done
    umount -l "$folder/store/overlay" 2>/dev/null
    rm -rf --one-file-system "$folder"
}
trap end EXIT
trap 'exit 143' TERM INT HUP

# The base that the file names, from a root that is here. Debian's own mirror is all that is fetched from.
import_base() {
    tar -C "$root" --one-file-system -cf - . | "${podman[@]}" import - localhost/debian:12-slim
}

# As a user would, but for the base, which is not to be pulled.
build_image() {
    buildah "${store[@]}" build --isolation chroot --format docker --pull-never \
        -f config/container/Containerfile -t localhost/shoald .
}

is_as_the_file_says() {
    local user health
    user=$("${podman[@]}" image inspect --format '{{.User}}' localhost/shoald) || return
    health=$("${podman[@]}" image inspect --format '{{.HealthCheck.Test}}' localhost/shoald) || return
    printf 'user %s, health %s\n' "$user" "$health"
    [[ $user == shoal && $health == *shoalctl* ]]
}

answers() {
    "${podman[@]}" run --rm --read-only "${given[@]}" --no-healthcheck --network none localhost/shoald --version
}

make_network() {
    local name
    for name in "${names[@]}"; do
        ip netns add "$id-$name" && ip -n "$id-$name" link set lo up || return
    done
    ip -n "$id-a" link add eth0 type veth peer name eth0 netns "$id-b" || return
    ip -n "$id-a" address add 10.78.0.1/24 dev eth0 && ip -n "$id-b" address add 10.78.0.2/24 dev eth0 || return
    ip -n "$id-a" link set eth0 up && ip -n "$id-b" link set eth0 up
}

# What an administrator lays out on node $1: the configuration, the secret, the folder of the socket.
lay_out() {
    local name=$1 number=$2 at=$folder/$1
    mkdir -p "$at/etc" "$at/run" || return
    cat >"$at/etc/shoald.json" <<END
{
    "node": "$name",
    "listen": { "address": "10.78.0.$number" },
    "secret_file": "/etc/shoal/secret",
    "servers": [
        { "name": "a", "address": "10.78.0.1:7070" },
        { "name": "b", "address": "10.78.0.2:7070" }
    ]
}
END
    [[ $name != a ]] || (umask 077 && head -c 32 /dev/urandom | base64 -w 0 >"$at/etc/secret") || return
    [[ $name == a ]] || cp "$folder/a/etc/secret" "$at/etc/secret" || return
    chown 990:990 "$at/run" "$at/etc/secret" && chmod 600 "$at/etc/secret"
}

# As config/container/README.md has it, with the namespace in place of the host's network. The checks of
# its health are asked for here, and no timer of systemd's asks for them.
run_on() {
    local name=$1
    shift
    "${podman[@]}" run --read-only --network "ns:/run/netns/$id-$name" --cap-drop all \
        "${given[@]}" --health-interval disable --security-opt no-new-privileges --stop-timeout 45 -v "$folder/$name/run:/run/shoal" "$@"
}

start_daemons() {
    local name
    lay_out a 1 && lay_out b 2 || return
    for name in "${names[@]}"; do
        run_on "$name" --detach --name "shoald-$name" -v "$folder/$name/etc:/etc/shoal:ro" localhost/shoald || return
    done
}

is_healthy() {
    "${podman[@]}" healthcheck run "shoald-$1"
}

are_healthy() {
    wait_for is_healthy a && wait_for is_healthy b
}

# Only who it is, what it may, and that it can write nowhere: the rest is the kernel's.
is_confined() {
    local status
    status=$("${podman[@]}" exec shoald-a cat /proc/1/status) || return
    printf '%s\n' "$status"
    grep -q '^Uid:.990' <<<"$status" && grep -q '^CapEff:.0*$' <<<"$status" &&
        ! "${podman[@]}" exec shoald-a touch /opt/shoal/something
}

# Two ranks on each node, in containers of their own beside the daemon's.
train() {
    local name rank ranks=() status=0
    for rank in 0 1 2 3; do
        name=${names[rank / 2]}
        run_on "$name" --rm -e WORLD_SIZE=4 -e "RANK=$rank" -e "LOCAL_RANK=$((rank % 2))" -e SHOAL_JOB=digits \
            --entrypoint /opt/shoal/bin/shoal-digits localhost/shoald --epochs 10 >"$folder/rank-$rank.log" 2>&1 &
        ranks+=($!)
    done
    for rank in "${ranks[@]}"; do
        wait "$rank" || status=$?
    done
    tail -n 8 "$folder"/rank-*.log
    return "$status"
}

drains() {
    local status
    "${podman[@]}" stop shoald-a || return
    status=$("${podman[@]}" inspect --format '{{.State.ExitCode}}' shoald-a)
    "${podman[@]}" logs shoald-a 2>&1 | tail -n 5
    [[ $status == 0 ]] && "${podman[@]}" logs shoald-a 2>&1 | grep -q ': ended$'
}

printf '%s, %s, %s\n' "$(buildah --version)" "$(podman --version)" "$(crun --version | head -n 1)"
check 'a bare Debian 12 is the base' import_base
check 'buildah builds the image' build_image
check 'its user and its health check are in it' is_as_the_file_says
check 'it runs on a read-only root without a network' answers
check 'two network namespaces are joined' make_network
check 'a daemon starts in each' start_daemons
check 'both are healthy' are_healthy
check 'the daemon is no root, has no capability and cannot write' is_confined
check 'four ranks in containers train the digits on both' train
check 'SIGTERM drains it: exit status 0' drains
