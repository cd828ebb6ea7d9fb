#!/usr/bin/env bash
# Install what the build needs and this machine lacks. Silent and quick when nothing is missing.
#
#   scripts/install-deps.sh [--lint] [--bench] [--torch] [--native] [--root] [--picture] [--fuzz] [--packages]
#       [--deploy]
#
# --lint: also what `make lint` needs; --bench: also the peers that `make bench` measures; --torch:
# also PyTorch, without which the tests of the Python package are skipped (large), or, where Debian's is
# older than 2.6, what scripts/torch-env.sh makes an environment with; --root: also what
# scripts/debian-root.sh needs; --picture: also what `make picture` draws with; --fuzz: also what
# `make fuzz` builds with; --packages: also what `make deb` packs with;
# --deploy: also what builds and runs images in `make check-deploy`, and the browser of its page.
# --native: also what `make native` needs, a compiler and torch's headers, which pip's torch brings.
#
# Debian packages, with sudo only when not root. Lines say what is installed and how far it is. A
# machine without apt gets a list of what is missing, and exit status 1 if the build cannot do
# without one of them.
set -euo pipefail

packages=(gcc libc6-dev make pkg-config libfabric-dev libevent-dev libjansson-dev libhwloc-dev libsodium-dev
    libssl-dev libseccomp-dev uthash-dev check iproute2 python3-jsonschema systemd)
lint_packages=(clang-format clang-tidy cppcheck mandoc shellcheck)
options=("$@")

# Whether Debian's torch is too old, as that of Debian 12 (1.13) is. Where the lists of packages have not
# been fetched, the release says so.
torch_is_old() {
    local candidate='' release=0
    candidate=$(LC_ALL=C apt-cache policy python3-torch 2>/dev/null | sed -n 's/^ *Candidate: //p') || true
    if [[ $candidate && $candidate != '(none)' ]]; then
        dpkg --compare-versions "$candidate" lt 2.6
    else
        # shellcheck disable=SC1091  # of the system
        release=$(. /etc/os-release 2>/dev/null && [[ $ID == debian ]] && printf '%s' "${VERSION_ID:-0}") || true
        ((${release:-0} > 0 && release < 13))
    fi
}

torch_packages=(python3-torch python3-numpy python3-venv) native_packages=(python3-torch g++ libtorch-dev pybind11-dev python3-dev)
if [[ " $* " =~ \ --(bench|torch|native|packages)\  ]] && torch_is_old; then
    torch_packages=(python3-venv) native_packages=(g++ python3-dev)
fi
bench_packages=(python3 "${torch_packages[@]}" openmpi-bin libopenmpi-dev stunnel4)

for option in "$@"; do
    case $option in
    --lint) packages+=("${lint_packages[@]}") ;;
    --bench) packages+=("${bench_packages[@]}") ;;
    --torch) packages+=("${torch_packages[@]}") ;;
    --native) packages+=("${native_packages[@]}") ;;
    --root) packages+=(debootstrap) ;;
    --picture) packages+=(graphviz) ;;
    --fuzz) packages+=(clang libclang-rt-dev) ;;
    --packages)
        packages+=(build-essential dpkg-dev debhelper dh-python lintian python3-all)
        packages+=("${native_packages[@]}") # of its native backend
        ;;
    --deploy) packages+=(debootstrap buildah podman crun iproute2 python3-yaml chromium) ;;
    *)
        printf 'usage: %s [--lint] [--bench] [--torch] [--native] [--root] [--picture] [--fuzz] [--packages] [--deploy]\n' "$0" >&2
        exit 2
        ;;
    esac
done

# The packages of the list that dpkg does not know as installed.
packages_missing() {
    local -A installed=()
    local name status
    while read -r name status; do
        [[ $status == installed ]] && installed[$name]=1
    done < <(dpkg-query -W -f '${Package} ${db:Status-Status}\n' "$@" 2>/dev/null || true)
    for name in "$@"; do
        [[ ${installed[$name]:-} ]] || printf '%s\n' "$name"
    done
}

# Read what apt-get says of itself (APT::Status-Fd), and say every fifth of the way.
say_progress() {
    local line what percent fifth said='fetched 0'
    local status='^(dl|pm)status:.*:([0-9]+)(\.[0-9]+)?:[^:]*$'
    while IFS= read -r line; do
        [[ $line =~ $status ]] || continue
        what=fetched percent=${BASH_REMATCH[2]}
        [[ ${BASH_REMATCH[1]} == dl ]] || what=installed
        fifth="$what $((percent / 20 * 20))"
        [[ $fifth == "$said" ]] || printf '  %s %%\n' "$fifth"
        said=$fifth
    done
}

# Install packages by the command line in `apt`, which the caller has. What apt-get says besides goes
# to a file, for when it fails.
apt_install() {
    local log=$1 status=0 planned
    shift
    "${apt[@]}" --simulate install --no-install-recommends "$@" >"$log" 2>&1 || return 1
    planned=$(<"$log")
    # None, where an earlier run was interrupted after it had unpacked them all.
    printf 'installing %d packages, for want of %s\n' "$(grep -c '^Inst ' <<<"$planned" || true)" "$*"
    # The status has a descriptor that no program of a package inherits, so it cannot be their output.
    # It is made behind sudo, which closes what it does not know.
    "${apt[@]}" -o APT::Status-Fd=3 install -y --no-install-recommends "$@" 2>"$log" |
        say_progress || status=$?
    ((status != 0)) || printf '  installed all\n'
    return "$status"
}

install_debian() {
    local missing=() as_root=() apt log
    mapfile -t missing < <(packages_missing "${packages[@]}")
    ((${#missing[@]} > 0)) || return 0
    if ((EUID != 0)); then
        if ! command -v sudo >/dev/null; then
            printf 'missing packages, and no sudo to install them: %s\n' "${missing[*]}" >&2
            return 1
        fi
        as_root=(sudo)
    fi
    # env after sudo, which cleans the environment. Output is errors, and descriptor 3 is output.
    # shellcheck disable=SC2016  # the inner shell expands
    apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive LC_ALL=C bash -c 'exec "$@" 3>&1 >&2' bash
        apt-get -qq -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300)
    log=$(mktemp)
    # shellcheck disable=SC2064  # this file, now
    trap "rm -f '$log'" EXIT
    # The package lists may be absent or too old: fetch them only when they do not serve.
    ! apt_install "$log" "${missing[@]}" || return 0
    printf 'fetching the lists of packages\n'
    "${apt[@]}" update
    apt_install "$log" "${missing[@]}" || {
        tail -n 20 "$log" >&2
        printf 'could not install %s\n' "${missing[*]}" >&2
        return 1
    }
}

have_header() {
    printf '#include <%s>\n' "$1" | "${CC:-gcc}" -E -x c - >/dev/null 2>&1
}

# Whether an option was given.
asked_for() {
    [[ " ${options[*]} " == *" $1 "* ]]
}

# For other systems: what to look for, by the names that every system has.
list_other() {
    local needed=() useful=() command module
    for command in "${CC:-gcc}" make pkg-config; do
        command -v "$command" >/dev/null || needed+=("the command $command")
    done
    for module in libfabric libevent libevent_pthreads jansson hwloc libsodium openssl libseccomp check; do
        pkg-config --exists "$module" 2>/dev/null || needed+=("the pkg-config module $module")
    done
    have_header uthash.h || needed+=("the header uthash.h")
    command -v ip >/dev/null || useful+=("ip of iproute2 (tests over network namespaces)")
    command -v systemd-analyze >/dev/null || useful+=("systemd-analyze (tests of the service's unit)")
    python3 -c 'import jsonschema' 2>/dev/null ||
        useful+=("Python 3 with jsonschema (tests of the configuration's schema)")
    if asked_for --lint; then
        for command in clang-format clang-tidy cppcheck; do
            command -v "$command" >/dev/null || needed+=("the command $command")
        done
        command -v shellcheck >/dev/null || useful+=("shellcheck (lint of the scripts)")
        command -v mandoc >/dev/null || useful+=("mandoc (lint of the manual pages)")
    fi
    if asked_for --bench; then
        command -v python3 >/dev/null || needed+=("Python 3 (the benchmark)")
        python3 -c 'import torch' 2>/dev/null || useful+=("Python 3 with torch (the peer Gloo)")
        (command -v mpicc && command -v mpirun) >/dev/null || useful+=("mpicc and mpirun of Open MPI (a peer)")
    fi
    if asked_for --torch; then
        python3 -c 'import torch; assert tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 6)' 2>/dev/null ||
            useful+=("Python 3 with torch 2.6 or later (tests of the Python package)")
    fi
    if asked_for --picture; then
        command -v dot >/dev/null || needed+=("the command dot of Graphviz")
    fi
    if asked_for --fuzz; then
        command -v clang >/dev/null || needed+=("the command clang, with libFuzzer and the sanitizers")
    fi
    if asked_for --packages; then
        for command in dpkg-buildpackage dh lintian python3; do
            command -v "$command" >/dev/null || needed+=("the command $command")
        done
    fi
    if asked_for --deploy; then
        for command in buildah podman crun; do
            command -v "$command" >/dev/null || useful+=("$command (images, run in make check-deploy)")
        done
    fi
    if asked_for --root || asked_for --deploy; then
        command -v debootstrap >/dev/null || needed+=("the command debootstrap")
    fi
    if ((${#useful[@]} > 0)); then
        printf 'missing, done without: %s\n' "${useful[@]}" >&2
    fi
    if ((${#needed[@]} > 0)); then
        printf 'missing, needed: %s\n' "${needed[@]}" >&2
        return 1
    fi
}

if command -v dpkg-query >/dev/null && command -v apt-get >/dev/null; then
    install_debian
else
    list_other
fi
