#!/usr/bin/env bash
# Make a Debian 13 root, with PyTorch 2.6, libfabric 2.1 and what the build needs, to test in.
#
#   scripts/debian13-root.sh ROOT             make it (1.6 GB); nothing to do when it is there;
#                                             a folder that this has not made is left alone
#   scripts/debian13-root.sh ROOT -- COMMAND  run a command in it, in this tree (mounted at /shoal)
#
# Needs root and debootstrap. Two stages: the base first, then apt-get inside with /proc and /dev
# mounted, without which Debian's Python and OpenMP packages do not configure. Mounts are made in a
# mount namespace of the command's own, so none can be left behind. The exit status is 77 where this
# machine cannot make it: no root, no mounts, no mirror.
#
#   SHOAL_DEBIAN_MIRROR   where packages come from; default: debootstrap's
set -euo pipefail

packages=(gcc make pkg-config libfabric-dev libevent-dev libjansson-dev libhwloc-dev libsodium-dev
    uthash-dev check iproute2 procps systemd python3-jsonschema python3-torch python3-numpy
    python3-pip python3-setuptools python3-hypothesis)

fail() {
    printf 'debian13-root: %s\n' "$*" >&2
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

# Run a command line of bash inside, with the mounts that it needs. The tree is at /shoal, and the
# headers of CUDA, which Debian does not have, where they are here.
inside() {
    # shellcheck disable=SC2016
    unshare --mount --fork --kill-child bash -c '
        set -euo pipefail
        root=$1 tree=$2 cuda=$3
        shift 3
        mount --make-rprivate /
        # A mount of its own, as a root is: ip netns does not work in another.
        mount --bind "$root" "$root"
        mount -t proc proc "$root/proc"
        mount --rbind /dev "$root/dev"
        mount --rbind /sys "$root/sys"
        mount -t tmpfs tmpfs "$root/run"
        mkdir -p "$root/shoal"
        mount --bind "$tree" "$root/shoal"
        if [[ -e $cuda/include/cuda.h ]]; then
            mkdir -p "$root/usr/local/cuda"
            mount --bind "$cuda" "$root/usr/local/cuda"
        fi
        exec chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 \
            DEBIAN_FRONTEND=noninteractive SHOAL_IN_ROOT=1 \
            bash -c "cd /shoal && exec \"\$@\"" bash "$@"
    ' bash "$root" "$tree" "${CUDA_HOME:-/usr/local/cuda}" "$@"
}

make_base() {
    local arguments=(--variant=minbase trixie "$root.new")
    [[ -z ${SHOAL_DEBIAN_MIRROR:-} ]] || arguments+=("$SHOAL_DEBIAN_MIRROR")
    rm -rf --one-file-system "$root.new"
    mkdir "$root.new"
    touch "$root.new/.shoal-root"
    debootstrap "${arguments[@]}" >"$root.log" 2>&1 || {
        tail -n 5 "$root.log" >&2
        cannot "debootstrap failed; all it said is in $root.log"
    }
    # The names of hosts as here.
    cp /etc/resolv.conf /etc/hosts "$root.new/etc/"
    if [[ -d $root ]]; then
        rm -rf --one-file-system "$root"
    fi
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
    inside apt-get clean
    printf '%s\n' "${packages[*]}" >"$root/.shoal-ready"
}

(($# >= 1)) || fail "usage: $0 ROOT [-- COMMAND...]"
tree=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$(dirname "$1")"
root=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
shift
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
if [[ $(cat "$root/.shoal-ready" 2>/dev/null || true) != "${packages[*]}" ]]; then
    install_packages
fi
if (($# > 0)); then
    [[ $1 == -- ]] || fail "expected -- before the command, got $1"
    shift
    inside "$@"
fi
