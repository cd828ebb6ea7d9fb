# Sourced by what runs in a booted root, or on parts of its own: a line for each thing that is checked,
# and waiting. Who has no /root of his own sets `log` afterwards.
# shellcheck shell=bash
log=/root/check.log # of the command that runs
LIMIT_S=60 # the backstop of whatever is waited for

# Run a command, which must end well; what it says is in the log. The first that does not ends it all.
check() {
    local what=$1
    shift
    if "$@" >"$log" 2>&1; then
        printf 'PASS %s\n' "$what"
    else
        printf 'FAIL %s\n' "$what"
        tail -n 30 "$log"
        journalctl --no-pager -n 30 -u shoald 2>/dev/null
        exit 1
    fi
}

# Wait until a command ends well.
wait_for() {
    local deadline=$((SECONDS + LIMIT_S))
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < deadline)) || return 1
        sleep 0.2
    done
}

# "Debian 12.11, glibc 2.36, Python 3.11.2, systemd 252 (...)"; what is not there is left out.
say_versions() {
    printf 'Debian %s, glibc %s' "$(cat /etc/debian_version)" "$(ldd --version | awk 'NR == 1 { print $NF }')"
    ! command -v python3 >/dev/null || printf ', %s' "$(python3 --version)"
    ! command -v systemctl >/dev/null || printf ', %s' "$(systemctl --version | head -n 1)"
    printf '\n'
}

# systemd's judgement on the unit: less than 2.0 is what it calls OK. Says the figure.
is_safe() {
    systemd-analyze security --no-pager --threshold=20 shoald
}
say_exposure() {
    printf '     systemd: %s\n' "$(systemd-analyze security --no-pager shoald | sed -n 's/.*Overall exposure level for //p')"
}

daemon_pid() {
    systemctl show --property MainPID --value shoald
}

has_job() {
    shoalctl jobs --json | grep -q "\"name\": \"$1\""
}

is_served() {
    systemctl is-active shoald && shoalctl status && [[ $(stat -c %U /run/shoal/shoald.sock) == shoal ]]
}

# In the background: a job of this name that runs until its daemon goes. Its words are in /root/NAME.log.
start_job() {
    shoalrun --socket /run/shoal/shoald.sock --job "$1" -n 2 -- \
        shoalperf all_reduce -b 1M -n 100000000 >"/root/$1.log" 2>&1 &
    job=$!
    wait_for has_job "$1"
}

# It has failed, since its node shut down.
job_was_told() {
    local status=0
    wait "$job" || status=$?
    cat "/root/$1.log"
    ((status != 0)) && grep -q 'shutting down' "/root/$1.log"
}

# The daemon with this process number drained, and ended by itself.
has_drained() {
    journalctl --no-pager _PID="$1"
    journalctl --no-pager _PID="$1" | grep -q ': ended$'
}
