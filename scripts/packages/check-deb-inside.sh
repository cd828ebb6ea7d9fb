#!/usr/bin/env bash
# The part of check-deb.sh that runs in the booted root: the packages' life from apt's first word to
# the purge, with a job that runs when its daemon is upgraded.
#
#   check-deb-inside.sh PACKAGES LATER ARCHIVES BACKEND
#
# PACKAGES, LATER and ARCHIVES are folders: the packages, later ones, what they need. BACKEND is what
# "python3 -m shoal" is to say.
#
# "PASS what" or "FAIL what" for each thing. The first that fails ends it, with what was said.
set -uo pipefail

packages=$1 later=$2 archives=$3 backend=$4
apt=(apt-get -qq -y --no-install-recommends -o "Dir::Cache::Archives=$archives"
    -o Dpkg::Use-Pty=0 -o APT::Sandbox::User=root)
# shellcheck source=scripts/packages/inside.sh
. "$(dirname "$0")/inside.sh"

# What it does by itself beside the unit.
sandboxed() {
    journalctl --no-pager -u shoald
    ! journalctl --no-pager -u shoald | grep -q 'keeps all system calls'
}

two_ranks() {
    shoalrun --socket /run/shoal/shoald.sock -n 2 -- shoalperf all_reduce -b 1M -n 5
}

# Somebody without rights, but in the daemon's group.
a_user() {
    useradd --no-create-home --groups shoal somebody &&
        setpriv --reuid somebody --regid somebody --init-groups shoalctl status
}

python_finds_it() {
    python3 -c 'from shoal import library; import shoal
assert library.load().c.shoal_version().decode() == shoal.__version__'
}

# The release's PyTorch is recommended, and was left out so far.
python_uses_it() {
    local said status=0
    "${apt[@]}" install python3-torch python3-numpy || return
    said=$(python3 -m shoal 2>&1) || status=$?
    printf '%s\n' "$said"
    grep -q "^backend *$backend" <<<"$said" || return 1
    # python3 -m shoal says of a torch that is too old that it is, and tries nothing.
    if [[ $backend == none ]]; then grep -q 'needs torch 2.6 or later' <<<"$said"; else return "$status"; fi
}

for_programs() {
    [[ -e /usr/include/shoal.h && -e /usr/lib/x86_64-linux-gnu/pkgconfig/shoal.pc ]] &&
        [[ $(readlink -f /usr/lib/x86_64-linux-gnu/libshoal.so) == /usr/lib/x86_64-linux-gnu/libshoal.so.0.* ]] &&
        shoalrun --print jax
}

# A rank learns that its node is shutting down; a daemon that ended as it should has status 0, and the
# administrator's configuration stays.
upgrade() {
    local before
    before=$(daemon_pid)
    sed -i 's|^ *//"level"|        "level"|' /etc/shoal/shoald.json
    start_job upgraded || return
    "${apt[@]}" install "$later"/*.deb || return
    job_was_told upgraded || return
    has_drained "$before" || return
    wait_for is_served || return
    [[ $(daemon_pid) != "$before" ]] || return
    grep -q '^ *"level"' /etc/shoal/shoald.json
}

is_removed() {
    [[ ! -e /usr/bin/shoald && ! -e /run/shoal && -e /etc/shoal/shoald.json ]] && ! systemctl is-active shoald
}

# The user of a service stays, as Debian has it: files may be his.
nothing_is_left() {
    local left
    left=$(find / -xdev \( -path /proc -o -path /sys -o -path /root -o -path /shoal -o -path /dev \) -prune -o \
        -iname '*shoal*' -not -name '.shoal-*' -not -name 90shoal-host -print)
    printf '%s\n' "$left"
    [[ ! $left || $left == /shoal ]]
}

say_versions
check 'apt installs all four' "${apt[@]}" install "$packages"/*.deb
check 'the service is enabled' systemctl is-enabled shoald
check 'the service runs and answers' wait_for is_served
check 'its sandbox is there too' sandboxed
check 'systemd finds it safe: 2.0 at most' is_safe
say_exposure
check 'two ranks all-reduce through it' two_ranks
check 'a user of the group shoal reaches it' a_user
check 'Python finds the library' python_finds_it
check 'header, library and pkg-config file are in place' for_programs
check "beside PyTorch the backend is $backend" python_uses_it
sed -n 's/^\(backend\|torch\)/     &/p' "$log"
check 'an upgrade drains the daemon of a running job' upgrade
check 'two ranks all-reduce through the later one' two_ranks
check 'apt removes all' "${apt[@]}" remove shoal libshoal0 libshoal-dev python3-shoal
check 'programs and service are gone, the configuration stays' is_removed
check 'apt purges what has a configuration' "${apt[@]}" purge shoal
check 'nothing is left' nothing_is_left
