#!/usr/bin/env bash
# Make a folder that runs on a machine with nothing installed: programs with their manual pages,
# libshoal, the Python package, and the shared libraries that they need but libc's and the GPU driver's, all found through $ORIGIN.
#
#   scripts/bundle.sh BUILD FOLDER    BUILD: a tree that `make` has built; FOLDER is replaced if it is
#                                     empty or a bundle (.shoal-bundle is in it)
set -euo pipefail
if (($# != 2)); then
    printf 'usage: %s BUILD FOLDER\n' "$0" >&2
    exit 2
fi
root=$(cd "$(dirname "$0")/.." && pwd)
build=$(cd "$1" && pwd)
folder=$2
[[ ! -e $folder || -e $folder/.shoal-bundle || -z $(ls -A "$folder") ]] || {
    printf '%s: is there and no bundle\n' "$folder" >&2
    exit 1
}
rm -rf "$folder"
mkdir -p "$folder/bin" "$folder/lib" "$folder/python"
touch "$folder/.shoal-bundle"
folder=$(cd "$folder" && pwd)

# The same objects, linked once more with a search path that holds for what libraries need in turn.
tree=$(mktemp -d "$build/bundle-XXXXXX")
trap 'rm -rf "$tree"' EXIT
cp -al "$build/obj" "$tree/obj"
# shellcheck disable=SC2016  # make and the loader expand
make -s -C "$root" BUILD="$tree" LDFLAGS='-Wl,--disable-new-dtags -Wl,-rpath,'\''$$ORIGIN/../lib'\' all

cp "$tree"/bin/* "$folder/bin"
cp -P "$tree"/lib/libshoal.so* "$tree"/lib/libshoal-mpitrampoline.so "$folder/lib"
cp -r "$root/worker/python/shoal" "$root/worker/python/examples" "$folder/python"
make -s -C "$root" DESTDIR= PREFIX="$folder" install-man
find "$folder" -name __pycache__ -type d -prune -exec rm -rf {} +
mkdir -p "$folder/share/shoal"
cp "$root"/config/*.json "$root/LICENSE" "$root/worker/examples/digits/digits.csv" "$folder/share/shoal"
cp "$root"/scripts/{check-gpu.sh,gpu_calls.py} "$root"/scripts/bench/{gpu,gpu_ranks,peers,rows}.py "$folder/share/shoal"
[[ ! -e $build/bench/bench_gpu_copy ]] || cp "$build/bench/bench_gpu_copy" "$folder/bin"

# What is loaded, by name and place; not what belongs to the system's own loader.
needed() {
    ldd "$folder"/bin/* "$folder"/lib/libshoal.so.0 | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' |
        sort -u | grep -vE '/(libc|libm|libdl|librt|libpthread|libresolv|libutil|ld-linux[^/]*|libcuda)\.so[.0-9]*$' |
        grep -vF "$folder/" || true
}
needed | while read -r library; do
    cp -L "$library" "$folder/lib/$(basename "$library")"
done

if ldd "$folder"/bin/* "$folder"/lib/libshoal.so.0 | grep 'not found'; then
    printf '%s: something is missing\n' "$folder" >&2
    exit 1
fi
left=$(needed)
if [[ $left ]]; then
    printf '%s: found outside of it:\n%s\n' "$folder" "$left" >&2
    exit 1
fi
printf '%s: %d programs, %d libraries, %s\n' "$folder" "$(find "$folder/bin" -type f | wc -l)" \
    "$(find "$folder/lib" -type f | wc -l)" "$(du -sh "$folder" | cut -f 1)"
