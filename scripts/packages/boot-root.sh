#!/usr/bin/env bash
# Boot a Debian root's systemd as process 1 of namespaces of its own, and run a command under it.
#
#   scripts/packages/boot-root.sh ROOT -- COMMAND...
#
# ROOT has systemd, and dbus for systemctl. The command runs in it when the boot is done, in /root, as
# root; its status is the script's. Then process 1 ends, and with it all others, as they do when this
# script is killed. Mounts, processes, host name, control groups and IPC are their own; the network is
# one of loopback alone. Exit status 77: this machine cannot boot one.
#
#   SHOAL_BOOT_TIMEOUT_S   how long the boot may take, default 90
#   SHOAL_BOOT_NETWORK     a network namespace of `ip netns` in place of one of its own
set -euo pipefail

fail() {
    printf 'boot-root: %s\n' "$*" >&2
    exit 1
}

cannot() {
    (fail "$@") || exit 77
}

[[ $# -ge 3 && $2 == -- ]] || fail "usage: $0 ROOT -- COMMAND..."
root=$(cd "$1" && pwd)
shift 2
((EUID == 0)) || cannot "must be root"
[[ -x $root/lib/systemd/systemd ]] || fail "$root has no systemd"
limit_s=${SHOAL_BOOT_TIMEOUT_S:-90}
network=(unshare --net)
[[ ! ${SHOAL_BOOT_NETWORK:-} ]] || network=(nsenter "--net=/run/netns/$SHOAL_BOOT_NETWORK")
console=$(mktemp)
outer='' group=''

# shellcheck disable=SC2317  # the trap calls it
end() {
    # Process 1 takes all others of its namespace with it.
    if [[ $outer ]]; then
        kill -KILL "$outer" 2>/dev/null || true
        wait "$outer" 2>/dev/null || true
    fi
    # The kernel lets go of a group a little after its last process has ended.
    for _ in {1..50}; do
        [[ -d $group ]] || break
        find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || sleep 0.1
    done
    rm -f "$console"
}
trap end EXIT
trap 'exit 143' TERM INT HUP

# Systemd needs the unified tree of control groups, of which it sees its own group alone.
tree=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)
[[ $tree ]] || cannot "there is no unified tree of control groups here"
mkdir "$tree/shoal-boot-$$" 2>/dev/null || cannot "no control group can be made in $tree"
group=$tree/shoal-boot-$$

# shellcheck disable=SC2016  # the inner shells expand
bash -c '
    echo $$ >"$2/cgroup.procs"
    exec "${@:4}" unshare --fork --kill-child --mount --pid --uts --ipc --cgroup bash -c "$1" boot "$3"
' outer '
    set -euo pipefail
    root=$1
    mount --make-rprivate /
    mount --bind "$root" "$root"
    mount -t proc proc "$root/proc"
    mount -t sysfs -o ro sysfs "$root/sys"
    mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
    mount -t tmpfs -o mode=755 tmpfs "$root/dev"
    for device in null zero full random urandom tty; do
        : >"$root/dev/$device"
        mount --bind "/dev/$device" "$root/dev/$device"
    done
    mkdir "$root/dev/pts" "$root/dev/shm"
    mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts"
    ln -s pts/ptmx "$root/dev/ptmx"
    ln -s /proc/self/fd "$root/dev/fd"
    mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
    mount -t tmpfs -o mode=755 tmpfs "$root/run"
    cd "$root"
    pivot_root . mnt
    umount -l /mnt
    cd /
    exec env -i container=shoal PATH=/usr/sbin:/usr/bin:/sbin:/bin \
        /lib/systemd/systemd --log-target=console --show-status=false
' "$group" "$root" "${network[@]}" </dev/null >"$console" 2>&1 &
outer=$!

# Process 1 of the namespaces, as this one sees it.
first_process() {
    awk '{ print $1 }' "/proc/$outer/task/$outer/children"
}

# shellcheck disable=SC2016  # the shell inside expands
in_root() {
    nsenter --target "$pid" --mount --pid --uts --ipc --net --cgroup --root --wd \
        env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
        bash -c 'cd /root && exec "$@"' bash "$@"
}

state='' deadline=$((SECONDS + limit_s))
until [[ $state == running || $state == degraded ]]; do
    if ! kill -0 "$outer" 2>/dev/null || ((SECONDS >= deadline)); then
        tail -n 20 "$console" >&2
        cannot "systemd is not up in $root: ${state:-it has not answered}"
    fi
    sleep 0.2
    # Before the exec it is a shell, whose mounts are not those of the root yet.
    pid=$(first_process 2>/dev/null || true)
    [[ $pid && $(cat "/proc/$pid/comm" 2>/dev/null) == systemd ]] || continue
    state=$(in_root systemctl is-system-running 2>/dev/null || true)
done
status=0
# Waited for, so that a signal ends it at once.
in_root "$@" <&0 &
wait $! || status=$?
exit "$status"
