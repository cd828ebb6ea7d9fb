#!/usr/bin/env bash
# Make Debian packages of this tree: debhelper, in a tree of its own, and lintian on what came out.
#
#   scripts/packages/deb.sh VERSION FOLDER    the packages are put into FOLDER, which is made anew
#
# The tree has the files that git has, or would have; config/debian becomes its debian/, with a
# changelog of VERSION and the unit. Errors and warnings of lintian are failures.
#
#   SHOAL_CC      the compiler, default gcc
#   DEB_BUILD_OPTIONS, SOURCE_DATE_EPOCH   as dpkg-buildpackage reads them
set -euo pipefail

fail() {
    printf 'deb: %s\n' "$*" >&2
    exit 1
}

(($# == 2)) || fail "usage: $0 VERSION FOLDER"
version=$1 folder=$2
tree=$(cd "$(dirname "$0")/../.." && pwd)
for command in dpkg-buildpackage dh lintian; do
    command -v "$command" >/dev/null || fail "$command is missing: scripts/install-deps.sh --packages"
done
[[ ! -e $folder || -e $folder/.shoal-deb || -z $(ls -A "$folder") ]] ||
    fail "$folder is there and has no packages of this script"
rm -rf "$folder"
mkdir -p "$folder"
touch "$folder/.shoal-deb"
folder=$(cd "$folder" && pwd)
source=$folder/shoal-$version
mkdir "$source"

# The files of this tree that git has, or would have; without git, all but what was built.
tree_files() {
    if git -C "$tree" rev-parse --is-inside-work-tree >/dev/null 2>&1; then
        git -C "$tree" ls-files -z --cached --others --exclude-standard |
            while IFS= read -r -d '' file; do [[ ! -e $tree/$file ]] || printf '%s\0' "$file"; done
    else
        (cd "$tree" && find . \( -path ./build -o -path ./.git \) -prune -o -type f -print0)
    fi
}
tree_files | tar -C "$tree" --null -T - -cf - | tar -C "$source" --no-same-owner -xf -

cp -r "$source/config/debian" "$source/debian"
rm "$source/debian/README.md"
# The same packages from the same commit.
if [[ -z ${SOURCE_DATE_EPOCH:-} ]]; then
    SOURCE_DATE_EPOCH=$(git -C "$tree" log -1 --format=%ct 2>/dev/null || date +%s)
fi
export SOURCE_DATE_EPOCH
cat >"$source/debian/changelog" <<END
shoal ($version) unstable; urgency=medium

  * What users notice is in CHANGELOG.md.

 -- $(sed -n 's/^Maintainer: //p' "$source/debian/control")  $(date -R -u -d "@$SOURCE_DATE_EPOCH")
END
mkdir -p "$source/debian/source"
printf '3.0 (native)\n' >"$source/debian/source/format"
sed -e 's|@PREFIX@|/usr|g' "$source/config/shoald.service.in" >"$source/debian/shoal.shoald.service"

# Build without the native backend where Debian's PyTorch is older than the oldest that shoal runs on, or not there.
torch=$(dpkg-query -W -f '${db:Status-Status} ${Version}' python3-torch 2>/dev/null || true)
if [[ $torch != 'installed '* ]] || dpkg --compare-versions "${torch#* }" lt 2.6; then
    export DEB_BUILD_PROFILES="${DEB_BUILD_PROFILES:-} pkg.shoal.nonative"
fi

export DEB_BUILD_OPTIONS="${DEB_BUILD_OPTIONS:-noautodbgsym parallel=$(nproc)}"
(cd "$source" && dpkg-buildpackage --build=binary --no-sign >"$folder/build.log" 2>&1) || {
    tail -n 30 "$folder/build.log" >&2
    fail "dpkg-buildpackage failed; all it said is in $folder/build.log"
}
rm -r "$source"
# As root lintian warns of itself.
lintian --fail-on error,warning --tag-display-limit 0 --allow-root "$folder"/shoal_*.changes ||
    fail "lintian has something to say"
printf '%s finds no error and nothing to warn of\n' "$(lintian --version)"
(cd "$folder" && ls -1 ./*.deb)
