#!/usr/bin/env bash
# The part of check-deploy.sh that runs in a booted root with the packages in it: what systemd does
# with the service when the daemon dies, hangs, is stopped, and has a wrong configuration.
#
#   systemd-inside.sh
set -uo pipefail

# shellcheck source=scripts/packages/inside.sh
. "$(dirname "$0")/../packages/inside.sh"
configuration=/etc/shoal/shoald.json

# Served by another process than this one.
is_another() {
    local pid
    pid=$(daemon_pid)
    ((pid != 0)) && [[ $pid != "$1" ]] && is_served
}

# After STOP its heartbeats end, which nothing but the watchdog sees.
restarted_after() {
    local before
    before=$(daemon_pid)
    kill -"$1" "$before" || return
    wait_for is_another "$before" || return
    [[ $(systemctl show --property NRestarts --value shoald) == "$2" ]]
}

stop_drains() {
    local before
    before=$(daemon_pid)
    start_job stopped || return
    systemctl stop shoald || return
    job_was_told stopped || return
    has_drained "$before" || return
    [[ $(systemctl show --property Result --value shoald) == success ]]
}

# It names the key, and is not tried again.
wrong_is_refused() {
    cp "$configuration" /root/right.json
    sed -i 's/"limits":/"limites":/' "$configuration"
    ! systemctl start shoald || return
    [[ $(systemctl is-failed shoald) == failed ]] || return
    [[ $(systemctl show --property ExecMainStatus --value shoald) == 3 ]] || return
    [[ $(systemctl show --property NRestarts --value shoald) == 0 ]] || return
    journalctl --no-pager -u shoald | grep 'shoald.json: /limites: unknown key, the nearest known one is /limits'
}

mended_starts() {
    cp /root/right.json "$configuration"
    systemctl start shoald && wait_for is_served
}

two_ranks() {
    shoalrun --socket /run/shoal/shoald.sock -n 2 -- shoalperf all_reduce -b 1M -n 5
}

say_versions
check 'the boot started it, and it is ready' wait_for is_served
check 'systemd finds it safe: 2.0 at most' is_safe
say_exposure
check 'killed by SIGKILL, it is started again' restarted_after KILL 1
check 'hanging, it is stopped by the watchdog and started again' restarted_after STOP 2
check 'two ranks all-reduce through the one that came after' two_ranks
check 'a stop drains it while a job runs' stop_drains
check 'with a wrong configuration it does not start, and says why' wrong_is_refused
check 'with the mended one it does' mended_starts
