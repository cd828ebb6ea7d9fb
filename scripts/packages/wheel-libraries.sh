#!/usr/bin/env bash
# Build libfabric and OpenSSL of Debian 13 and hwloc of Debian 12 for the glibc of this Debian 11, into
# /opt/shoal, each again when the mirror has a newer one. Debian 11's own are too old: no fixes come for its OpenSSL
# any more. Run in the root of `scripts/debian-root.sh bullseye`; about ten minutes.
#
#   scripts/packages/wheel-libraries.sh
set -euo pipefail

# Releases, of which the newest on the mirror is taken.
declare -A RELEASES=([libfabric]=2.1 [openssl]=3.5 [hwloc]=2.9)
prefix=/opt/shoal

fail() {
    printf 'wheel-libraries: %s\n' "$*" >&2
    exit 1
}

grep -q "^VERSION_CODENAME=bullseye" /etc/os-release || fail "this is no Debian 11"
mkdir -p $prefix/share/notices
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
log=$work/log

quietly() {
    "$@" >>"$log" 2>&1 || {
        tail -n 20 "$log" >&2
        fail "$* failed"
    }
}

# The version that is there, if any.
built() {
    cat "$prefix/.built-$1" 2>/dev/null || true
}

# The sources that both were made of, without Debian's changes, whose files may lack on a mirror.
list_sources() {
    local list=/etc/apt/sources.list.d/shoal-sources.list mirror
    read -r _ mirror _ < <(grep '^deb ' /etc/apt/sources.list)
    printf 'deb-src %s %s main\n' "$mirror" bookworm "$mirror" trixie >$list
    apt-get update >>"$log" 2>&1 || printf 'wheel-libraries: the mirror does not answer\n' >&2
}

# Download the newest source of a library's release that the mirror has, of `version`. False: that is built.
get() {
    local name=$1 release=${RELEASES[$1]//./\\.}
    cd "$work"
    for version in $(apt-cache showsrc "$name" 2>>"$log" | sed -n "s/^Version: \($release\..*\)/\1/p" | sort -rV); do
        [[ $version != "$(built "$name")" ]] || return 1
        ! apt-get source --tar-only --download-only "$name=$version" >>"$log" 2>&1 || return 0
    done
    [[ $(built "$name") ]] || fail "the mirror has no source of $name ${RELEASES[$name]}"
    return 1
}

# Unpack it, and go there.
unpack() {
    local name=$1
    mkdir "$name"
    tar -C "$name" --strip-components 1 -xf "${name}_${version%%-*}.orig.tar."*z*
    cd "$name"
    printf 'building %s %s\n' "$name" "${version%%-*}"
}

build_libfabric() {
    quietly autoreconf -fi
    quietly ./configure --prefix=$prefix --disable-static --without-valgrind CFLAGS='-O2'
    quietly make -s -j"$(nproc)"
    quietly make -s install
    cp COPYING $prefix/share/notices/libfabric
}

# Without a configuration of its own: the system's may name modules that are not in the wheel.
build_openssl() {
    quietly ./Configure linux-x86_64 --prefix=$prefix --libdir=lib --openssldir=$prefix/ssl no-tests no-docs no-apps \
        no-legacy no-module no-engine no-dtls no-quic no-comp no-psk no-srp
    quietly make -s -j"$(nproc)" build_libs
    quietly make -s install_dev
    cp LICENSE.txt $prefix/share/notices/openssl
}

# Of what it can see, the processor, its caches and memory are all that is asked for.
build_hwloc() {
    quietly ./configure --prefix=$prefix --disable-static --disable-readme --disable-doxygen --disable-cairo \
        --disable-libxml2 --disable-io --disable-plugins --disable-libudev CFLAGS='-O2'
    quietly make -s -j"$(nproc)" -C include install
    quietly make -s -j"$(nproc)" -C hwloc install
    install -m 644 hwloc.pc $prefix/lib/pkgconfig/
    cp COPYING $prefix/share/notices/hwloc
}

list_sources
for library in libfabric openssl hwloc; do
    get "$library" || continue
    unpack "$library"
    "build_$library"
    printf '%s\n' "$version" >"$prefix/.built-$library"
done
printf '%s\n' $prefix/lib >/etc/ld.so.conf.d/shoal.conf
ldconfig
