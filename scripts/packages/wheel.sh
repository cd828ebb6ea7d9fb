#!/usr/bin/env bash
# Make the wheel for every Linux with glibc 2.30 or later: built in a Debian 11, whose own is 2.31.
#
#   scripts/packages/wheel.sh BUILD ROOT [PYTHON]    BUILD: in this tree; ROOT: of scripts/debian-root.sh bullseye
#
# The tree is built in BUILD/debian11, inside; the wheel is BUILD/wheel/shoal-*.whl. The native backend of PyTorch is
# for the torch of PYTHON, a Python of this machine, and made by the compiler inside. Exit status 77 where this machine
# cannot make such a root.
set -euo pipefail
cd "$(dirname "$0")/../.."

(($# == 2 || $# == 3)) || {
    printf 'usage: %s BUILD ROOT [PYTHON]\n' "$0" >&2
    exit 2
}
build=$1 root=$2 python=${3:-}
[[ $build != /* && $build != ..* ]] || {
    printf 'wheel: %s is not in this tree\n' "$build" >&2
    exit 77
}
mkdir -p "$build"
in_root() {
    scripts/debian-root.sh bullseye "$root" -- "$@"
}
[[ -e $root/opt/shoal ]] || printf 'making a Debian 11 in %s, with libraries built in it: about 12 minutes\n' "$root"
scripts/debian-root.sh bullseye "$root"
in_root scripts/packages/wheel-libraries.sh
in_root env PKG_CONFIG_PATH=/opt/shoal/lib/pkgconfig make -s -j"$(nproc)" BUILD="$build/debian11" all
in_root env PKG_CONFIG_PATH=/opt/shoal/lib/pkgconfig scripts/bundle.sh "$build/debian11" "$build/debian11/bundle"
folders=
[[ ! $python ]] || folders=$("$python" -B worker/python/native/build.py --folders)
if [[ $folders ]]; then
    # The compiler sees the headers of torch and of this Python, and the tree, under their own paths.
    DEBIAN_ROOT_SHOWS=$folders CXX="scripts/debian-root.sh bullseye $root -- g++" \
        "$python" -B worker/python/native/build.py --build "$build/debian11"
fi
in_root python3 -B scripts/packages/wheel.py --native "$build/debian11/lib" "$build/debian11/bundle" "$build/wheel" \
    /opt/shoal/share/notices
