#!/usr/bin/env bash
# Install, use, upgrade, remove and purge the Debian packages in bare roots that systemd boots.
#
#   scripts/packages/check-deb.sh SUITE,ROOT,FOLDER,BACKEND...
#
# SUITE and ROOT are those of scripts/debian-root.sh; a copy of the root is used, beside it, and removed.
# FOLDER has the packages (scripts/packages/deb.sh). BACKEND is what "python3 -m shoal" is to say there
# beside that suite's PyTorch: "native", where the packages were built on the same suite, "in Python", or
# "none" where that PyTorch is too old. The upgrade is to the same packages with a later version. A line
# for each thing that is checked; the last line is "N passed, N failed", with ", N skipped" where a root
# cannot be made or booted here.
set -euo pipefail
cd "$(dirname "$0")/../.."

fail() {
    printf 'check-deb: %s\n' "$*" >&2
    exit 1
}

(($# >= 1)) || fail "usage: $0 SUITE,ROOT,FOLDER,BACKEND..."
work=$(mktemp -d)
copy=
end() {
    [[ ! $copy ]] || rm -rf --one-file-system "$copy"
    rm -rf "$work"
}
trap end EXIT
trap 'exit 143' TERM INT HUP
passed=0 failed=0 skipped=0

# The same packages with a later version, as a release would be.
make_later() {
    local folder=$1 deb version
    rm -rf "$work/later"
    mkdir -p "$work/later"
    for deb in "$folder"/*.deb; do
        rm -rf "$work/package"
        dpkg-deb --raw-extract "$deb" "$work/package"
        version=$(dpkg-deb --field "$deb" Version)
        sed -i "/^\(Version\|Depends\):/s/\(= \|Version: \)$version/\1$version+later/g" "$work/package/DEBIAN/control"
        dpkg-deb --root-owner-group --build "$work/package" "$work/later" >/dev/null
    done
}

# Everything inside comes from here: the boot has no network. What the packages need is fetched before.
prepare() {
    local suite=$1 root=$2 folder=$3 file
    scripts/debian-root.sh "$suite" "$root" --copy "$copy" || return
    mkdir -p "$copy/root/packages" "$copy/root/later" "$copy/root/archives/partial"
    cp "$folder"/*.deb "$copy/root/packages"
    cp "$work"/later/*.deb "$copy/root/later"
    for file in 'apt-get -qq update' \
        'apt-get -qq install -y --no-install-recommends systemd systemd-sysv dbus' \
        'apt-get -qq install -y --no-install-recommends --download-only -o Dir::Cache::Archives=/root/archives
            /root/packages/*.deb python3-torch python3-numpy'; do
        # shellcheck disable=SC2086  # words
        scripts/debian-root.sh "$suite" "$copy" -- bash -c "${file//$'\n'/ }" >"$work/log" 2>&1 || {
            tail -n 5 "$work/log" >&2
            return 77
        }
    done
}

check_suite() {
    local suite=$1 root=$2 folder=$3 backend=$4 status=0 lines
    compgen -G "$folder/*.deb" >/dev/null || fail "$folder has no packages: make deb"
    printf '== %s, packages of %s\n' "$suite" "$folder"
    make_later "$folder"
    copy=$(dirname "$root")/shoal-deploy-$suite-$$
    prepare "$suite" "$root" "$folder" || status=$?
    if ((status == 0)); then
        scripts/packages/boot-root.sh "$copy" -- /shoal/scripts/packages/check-deb-inside.sh \
            /root/packages /root/later /root/archives "$backend" 2>&1 | tee "$work/said" || status=${PIPESTATUS[0]}
        lines=$(grep -c '^PASS ' "$work/said" || true)
        passed=$((passed + lines))
        lines=$(grep -c '^FAIL ' "$work/said" || true)
        failed=$((failed + lines))
        # Whatever else it ends with is a failure that has no line.
        ((status == 0 || status == 77 || lines > 0)) || failed=$((failed + 1))
    elif ((status != 77)); then
        failed=$((failed + 1))
    fi
    if ((status == 77)); then
        printf 'SKIP %s: no such root can be made and booted here\n' "$suite"
        skipped=$((skipped + 1))
    fi
    rm -rf --one-file-system "$copy"
}

for place in "$@"; do
    IFS=, read -r suite root folder backend <<<"$place"
    [[ $backend ]] || fail "expected SUITE,ROOT,FOLDER,BACKEND, got $place"
    check_suite "$suite" "$root" "$folder" "$backend"
done
printf '%d passed, %d failed' "$passed" "$failed"
((skipped == 0)) || printf ', %d skipped' "$skipped"
printf '\n'
((failed == 0))
