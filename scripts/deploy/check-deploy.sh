#!/usr/bin/env bash
# Run shoal on the real parts that its users have, each in roots of its own that are removed.
#
#   scripts/deploy/check-deploy.sh BUILD DEBIAN12 DEBIAN13 [PART...]
#
# BUILD has the packages (make deb), and the wheel for the part `page` (make wheel). DEBIAN12 and DEBIAN13
# are the roots of scripts/debian-root.sh for bookworm and trixie, of which copies are used. PART: those
# named, or all.
# A line for each thing that is checked; the last line is "N passed, N failed", with ", N skipped"
# where this machine cannot do a part: no root, or a tool is missing.
set -euo pipefail
cd "$(dirname "$0")/../.."

PARTS=(systemd container slurm prometheus kubernetes browser page)

fail() {
    printf 'check-deploy: %s\n' "$*" >&2
    exit 1
}

(($# >= 3)) || fail "usage: $0 BUILD DEBIAN12 DEBIAN13 [PART...]"
build=$(cd "$1" && pwd)
debian12=$2 debian13=$3
shift 3
parts=("$@")
((${#parts[@]} > 0)) || parts=("${PARTS[@]}")
for part in "${parts[@]}"; do
    [[ " ${PARTS[*]} " == *" $part "* ]] || fail "there is no part $part, only ${PARTS[*]}"
done
compgen -G "$build/deb/*.deb" >/dev/null || fail "$build/deb has no packages: make deb"
work=$(mktemp -d)
copy=
end() {
    [[ ! $copy ]] || rm -rf --one-file-system "$copy"
    rm -rf "$work"
}
trap end EXIT
trap 'exit 143' TERM INT HUP
passed=0 failed=0 skipped=0

# A copy of a root with packages of Debian's and shoal's own in it: nothing is fetched once it is booted.
make_root() {
    local suite=$1 root=$2 command
    shift 2
    copy=$(dirname "$root")/shoal-deploy-$part-$$
    scripts/debian-root.sh "$suite" "$root" --copy "$copy" || return
    mkdir -p "$copy/root/packages"
    cp "$build"/deb/*.deb "$copy/root/packages"
    for command in "update" "-y -o Dpkg::Use-Pty=0 install --no-install-recommends $*"; do
        in_copy "apt-get -qq $command" || return 77
    done
    in_copy "apt-get -qq -y -o Dpkg::Use-Pty=0 install --no-install-recommends /root/packages/*.deb" || {
        printf 'FAIL  the packages can be installed\n'
        return 1
    }
}

in_copy() {
    scripts/debian-root.sh "$suite" "$copy" -- bash -c "$1" >"$work/log" 2>&1 || {
        tail -n 5 "$work/log" >&2
        return 1
    }
}

remove_root() {
    rm -rf --one-file-system "$copy"
    copy=
}

# A script of this folder in the copy, under its booted systemd.
in_booted() {
    scripts/packages/boot-root.sh "$copy" -- "/shoal/scripts/deploy/$1"
}

check_systemd() {
    make_root bookworm "$debian12" systemd systemd-sysv dbus || return
    in_booted systemd-inside.sh
}

check_container() {
    scripts/debian-root.sh bookworm "$debian12" || return
    scripts/deploy/container.sh "$debian12" "$(dirname "$debian12")/shoal-deploy-$part-$$"
}

# Where torch is, and a compiler.
check_slurm() {
    make_root trixie "$debian13" systemd systemd-sysv dbus slurmctld slurmd slurm-client munge || return
    # Started by the part, when it has laid out their configuration.
    scripts/debian-root.sh trixie "$copy" -- systemctl --quiet mask slurmctld slurmd || return
    in_booted slurm-inside.sh
}

check_prometheus() {
    make_root bookworm "$debian12" systemd systemd-sysv dbus iproute2 procps prometheus || return
    scripts/debian-root.sh bookworm "$copy" -- systemctl --quiet mask prometheus || return
    in_booted prometheus-inside.sh
}

# The commands of doc/first-training.md, in two bare Debian 12 and by pip beside Debian 13's PyTorch.
check_page() {
    compgen -G "$build/wheel/*.whl" >/dev/null || fail "$build/wheel has no wheel: make wheel"
    scripts/debian-root.sh bookworm "$debian12" && scripts/debian-root.sh trixie "$debian13" || return
    scripts/deploy/page-nodes.sh deb "$(dirname "$debian12")/shoal-deploy-$part-$$" "$debian12" "$build"/deb/*.deb &&
        scripts/deploy/page-nodes.sh pip "build/page-$$" "$debian13" "$build"/wheel/*.whl
}

# The live page in Debian's Chromium, of a daemon here and of statuses that are made up. What becomes of
# a test stands in its line, or in that of its words, which follows.
check_browser() {
    local status=0
    command -v chromium >/dev/null || return 77
    printf '     %s\n' "$(chromium --version 2>/dev/null)"
    TEST_BUILD_DIR=$build python3 -B tests/server/page/test_page_browser.py >"$work/browser" 2>&1 || status=$?
    awk '/^test_[a-z_]* \(/ { name = $1; gsub("_", " ", name); sub("^test ", "", name) }
        / \.\.\. ok$/ { print "PASS " name }
        / \.\.\. (FAIL|ERROR)$/ { print "FAIL " name }' "$work/browser"
    ((status == 0)) || cat "$work/browser"
    return "$status"
}

# Without a cluster: no root is needed.
check_kubernetes() {
    python3 -B scripts/deploy/kubernetes.py "$build"
}

# Count what a part says. A part that ends badly without a line of its own is one failure.
run_part() {
    local status lines
    printf '== %s\n' "$part"
    set +e
    "check_$part" > >(tee "$work/said") 2>&1
    status=$?
    set -e
    wait $! || true
    [[ ! $copy ]] || remove_root
    passed=$((passed + $(grep -c '^PASS ' "$work/said" || true)))
    lines=$(grep -c '^FAIL ' "$work/said" || true)
    failed=$((failed + lines))
    if ((status == 77)); then
        printf 'SKIP %s: this machine cannot\n' "$part"
        skipped=$((skipped + 1))
    elif ((status != 0 && lines == 0)); then
        printf 'FAIL %s ended with status %d\n' "$part" "$status"
        failed=$((failed + 1))
    fi
}

for part in "${parts[@]}"; do
    run_part
done
printf '%d passed, %d failed' "$passed" "$failed"
((skipped == 0)) || printf ', %d skipped' "$skipped"
printf '\n'
((failed == 0))
