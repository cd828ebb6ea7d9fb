#!/usr/bin/env bash
# Make a Debian in a folder, and run commands in it, in this tree.
#
#   scripts/debian-root.sh SUITE ROOT               make the root; nothing to do when it is there, and a
#                                                   folder that this has not made is left alone
#   scripts/debian-root.sh SUITE ROOT --copy COPY   a copy of it in the folder COPY, in place of the one
#                                                   before, with a copy of this tree in its /shoal
#   scripts/debian-root.sh SUITE ROOT -- COMMAND    run a command in it, in /shoal: a COPY's own tree, or
#                                                   this one mounted there. ROOT may be a COPY
#
# SUITE is bookworm, Debian 12, with what a user needs before the first command and nothing else
# (0.3 GB); trixie, Debian 13, with PyTorch 2.6, libfabric 2.1 and what the build needs (1.6 GB);
# bullseye, Debian 11, with what the wheel is built with (0.9 GB); or trixie-bare and bullseye-bare, as
# nobody has set them up.
# Packages that were fetched are kept beside the root, in shoal-packages-SUITE.
#
# Needs root and debootstrap. Two stages: the base first, then apt-get inside with /proc and /dev
# mounted, without which Debian's Python and OpenMP packages do not configure. A command has namespaces
# of its own for mounts and for processes, so neither can be left behind. The exit status is 77 where
# this machine cannot make the root: no root, no mounts, no mirror.
#
#   SHOAL_DEBIAN_MIRROR   where packages come from; default: where this machine's apt has Debian from,
#                         else debootstrap's
#   DEBIAN_ROOT_SHOWS     folders of this machine, separated by colons, that a command sees under their own paths, of
#                         which empty folders stay in the root
set -euo pipefail

# What each suite gets besides debootstrap's minimum.
suite_packages() {
    case $1 in
    bookworm) printf '%s\n' make ca-certificates ;;
    trixie-bare | bullseye-bare) printf '%s\n' ca-certificates ;;
    bullseye)
        printf '%s\n' ca-certificates gcc g++ make pkg-config perl dpkg-dev autoconf automake libtool libevent-dev \
            libjansson-dev libsodium-dev libseccomp-dev uthash-dev libibverbs-dev librdmacm-dev \
            libpsm2-dev libnuma-dev libnl-route-3-dev python3
        ;;
    trixie)
        printf '%s\n' gcc make pkg-config libfabric-dev libevent-dev libjansson-dev libhwloc-dev \
            libsodium-dev libssl-dev libseccomp-dev uthash-dev check iproute2 procps systemd python3-jsonschema python3-torch \
            python3-numpy python3-pip python3-setuptools python3-hypothesis
        ;;
    *) fail "$1 is not one of bookworm, trixie, trixie-bare, bullseye, bullseye-bare" ;;
    esac
}

fail() {
    printf 'debian-root: %s\n' "$*" >&2
    exit 1
}

cannot() {
    (fail "$@") || exit 77
}

# Of a root that was not completed nothing is kept; what somebody else has made is not ours to remove.
check_ours() {
    [[ ! -e $1 || -e $1/.shoal-root || -z $(ls -A "$1") ]] ||
        fail "$1 is there and was not made by this script: remove it, or name another folder"
}

remove() {
    [[ ! -e $1 ]] || rm -rf --one-file-system "$1"
}

# Whether ROOT has the packages of the list above as it is now.
is_ready() {
    [[ $(cat "$root/.shoal-ready" 2>/dev/null || true) == "${packages[*]}" ]]
}

# Run a command line inside, with the mounts that it needs. A mounted tree brings the headers of CUDA,
# which Debian does not have, where they are here; a copy has nothing of this machine's.
inside() {
    local name environment=()
    for name in http_proxy https_proxy no_proxy; do
        [[ -z ${!name:-} ]] || environment+=("$name=${!name}")
    done
    mkdir -p "$cache"
    # shellcheck disable=SC2016
    unshare --mount --pid --fork --kill-child bash -c '
        set -euo pipefail
        root=$1 tree=$2 cuda=$3 cache=$4 shown=$5
        shift 5
        mount --make-rprivate /
        # A mount of its own, as a root is: ip netns does not work in another.
        mount --bind "$root" "$root"
        mount -t proc proc "$root/proc"
        # libfabric looks through all names of the kernel each time a daemon starts: half of a start.
        mount --bind /dev/null "$root/proc/kallsyms" 2>/dev/null || true
        mount --rbind /dev "$root/dev"
        mount --rbind /sys "$root/sys"
        mount -t tmpfs tmpfs "$root/run"
        mount --bind "$cache" "$root/var/cache/apt/archives"
        mkdir -p "$root/shoal"
        if [[ ! -e $root/.shoal-tree ]]; then
            mount --bind "$tree" "$root/shoal"
            if [[ -e $cuda/include/cuda.h ]]; then
                mkdir -p "$root/usr/local/cuda"
                mount --bind "$cuda" "$root/usr/local/cuda"
            fi
        fi
        IFS=:
        for folder in $shown; do
            mkdir -p "$root$folder"
            mount --bind "$folder" "$root$folder"
        done
        unset IFS
        # Not exec: this shell is the parent of whoever lost his own, and all end with it.
        trap "exit 143" TERM
        chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 "$@"
    ' bash "$root" "$tree" "${CUDA_HOME:-/usr/local/cuda}" "$cache" "${DEBIAN_ROOT_SHOWS:-}" \
        DEBIAN_FRONTEND=noninteractive "${environment[@]}" \
        bash -c "cd /shoal && exec \"\$@\"" bash "$@"
}

# Where this machine's apt has Debian from; nothing where it has not.
mirror_of_host() {
    command -v apt-get >/dev/null || return 0
    # shellcheck disable=SC2016  # apt-get expands it
    { apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' 'Label: Debian' 2>/dev/null || true; } |
        grep -m 1 '^https\?://' || true
}

# How this machine's apt reaches the mirror holds inside too.
copy_network() {
    local to=$1
    # debootstrap copies the name server's address, and no file of hosts: a bare root has none.
    [[ $suite != trixie || ! -e /etc/hosts ]] || cp /etc/hosts "$to/etc/"
    mkdir -p "$to/etc/apt/apt.conf.d"
    if command -v apt-config >/dev/null; then
        apt-config dump | { grep -E '^Acquire::(https?::([^ ]*::)?Proxy|Check-[A-Za-z-]*|Retries) ' || true; } \
            >"$to/etc/apt/apt.conf.d/90shoal-host"
    fi
}

# dpkg waits for the disk after each file of a package, which took half of an installation's time. What a root
# lost when the machine goes down is made again.
spare_disk() {
    mkdir -p "$1/etc/dpkg/dpkg.cfg.d"
    printf 'force-unsafe-io\n' >"$1/etc/dpkg/dpkg.cfg.d/unsafe-io"
}

make_base() {
    local arguments=(--variant=minbase "${suite%-bare}" "$root.new") mirror proxy=
    mirror=${SHOAL_DEBIAN_MIRROR:-$(mirror_of_host)}
    [[ -z $mirror ]] || arguments+=("$mirror")
    if [[ -z ${http_proxy:-} ]] && command -v apt-config >/dev/null; then
        eval "$(apt-config shell proxy Acquire::http::Proxy)"
        # debootstrap does not read what apt reads.
        [[ -z $proxy || $proxy == DIRECT ]] || export http_proxy=$proxy
    fi
    remove "$root.new"
    mkdir "$root.new"
    touch "$root.new/.shoal-root"
    # It mounts a /proc meanwhile.
    unshare --mount true || cannot "mounts are not allowed here"
    unshare --mount debootstrap "${arguments[@]}" >"$root.log" 2>&1 || {
        tail -n 5 "$root.log" >&2
        cannot "debootstrap failed; all it said is in $root.log"
    }
    copy_network "$root.new"
    spare_disk "$root.new"
    remove "$root"
    mv "$root.new" "$root"
}

install_packages() {
    inside true || cannot "mounts are not allowed here"
    if [[ -e $root/.shoal-ready ]] && ! inside apt-get -qq update >>"$root.log" 2>&1; then
        cannot "apt-get update failed; all it said is in $root.log"
    fi
    inside apt-get -qq -o Dpkg::Use-Pty=0 install -y --no-install-recommends "${packages[@]}" \
        >>"$root.log" 2>&1 || {
        tail -n 5 "$root.log" >&2
        ! grep -q 'Unable to locate package' "$root.log" || fail "a package is not there"
        cannot "apt-get failed; all it said is in $root.log"
    }
    printf '%s\n' "${packages[*]}" >"$root/.shoal-ready"
}

# The files of this tree that git has, or would have; without git, all but what was built.
tree_files() {
    if git -C "$tree" rev-parse --is-inside-work-tree >/dev/null 2>&1; then
        git -C "$tree" ls-files -z --cached --others --exclude-standard |
            while IFS= read -r -d '' file; do [[ ! -e $tree/$file ]] || printf '%s\0' "$file"; done
    else
        (cd "$tree" && find . \( -path ./build -o -path ./.git \) -prune -o -type f -print0)
    fi
}

make_copy() {
    local copy=$1
    check_ours "$copy"
    remove "$copy"
    cp -a --reflink=auto "$root" "$copy" || cannot "$root cannot be copied"
    mkdir -p "$copy/shoal"
    tree_files | tar -C "$tree" --null -T - -cf - | tar -C "$copy/shoal" --no-same-owner -xf -
    spare_disk "$copy" # the root may be older than this
    touch "$copy/.shoal-tree"
}

(($# >= 2)) || fail "usage: $0 SUITE ROOT [--copy COPY | -- COMMAND...]"
suite=$1
packages_of=$(suite_packages "$suite")
mapfile -t packages <<<"$packages_of"
tree=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$(dirname "$2")"
root=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
cache=$(dirname "$root")/shoal-packages-${suite%-bare}
shift 2
if [[ ! -e $root/.shoal-ready ]]; then
    check_ours "$root"
    check_ours "$root.new"
fi
((EUID == 0)) || cannot "must be root, for debootstrap and chroot"
if [[ ! -e $root/.shoal-ready ]]; then
    command -v debootstrap >/dev/null || cannot "debootstrap is missing (the package of that name)"
    make_base
fi
# Also when the list above has changed since.
is_ready || install_packages
(($# > 0)) || exit 0
if [[ $1 == --copy && $# == 2 ]]; then
    make_copy "$2"
elif [[ $1 == -- && $# -ge 2 ]]; then
    shift
    inside "$@"
else
    fail "expected --copy COPY, or -- and a command, got $*"
fi
