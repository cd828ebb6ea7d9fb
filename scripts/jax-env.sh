#!/usr/bin/env bash
# Make a virtual environment with JAX for CPUs, and keep it. Silent and quick when it is there and whole.
#
#   scripts/jax-env.sh [FOLDER]    FOLDER: default JAX_ENV, else /var/tmp/shoal-jax
#
# For `make check-jax`. pip fetches 150 MB as it is configured on this machine, and the folder takes 500 MB. Needs
# python3-venv, which `scripts/install-deps.sh --torch` installs where Debian's own torch is too old.
#
#   JAX_ENV   the folder, where none is named
set -euo pipefail

# The newest that Python 3.11 takes, of Debian 12; and what it had then.
packages=(jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6)

fail() {
    printf 'jax-env: %s\n' "$*" >&2
    exit 1
}

[[ $# -le 1 && ${1:-} != -* ]] || fail "usage: $0 [FOLDER]"
folder=${1:-${JAX_ENV:-/var/tmp/shoal-jax}}
stamp=$folder/.shoal-jax # written last: of what, and by which Python

python=/usr/bin/python3
[[ -x $python ]] || python=$(command -v python3) || fail "there is no python3"
made_of="${packages[*]} for $("$python" --version 2>&1)"

# An upgrade of the system's Python leaves one that does not start.
if [[ -e $stamp && $(<"$stamp") == "$made_of" ]] && "$folder/bin/python3" -c '' 2>/dev/null; then
    exit 0
fi
[[ ! -e $folder || -e $stamp || -e $folder/.shoal-jax-begun || -z $(ls -A "$folder") ]] ||
    fail "$folder is there and was not made by this script: remove it, or name another folder"

printf 'making %s with %s\n' "$folder" "$made_of"
rm -rf --one-file-system "$folder"
mkdir -p "$folder"
touch "$folder/.shoal-jax-begun"
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# A command, and what to say with its last lines when it fails.
try() {
    local advice=$1
    shift
    "$@" >"$log" 2>&1 || {
        tail -n 5 "$log" >&2
        fail "$advice"
    }
}

try "$python makes no virtual environment: python3-venv may be missing" "$python" -m venv "$folder"
printf '  fetching and installing with pip, a minute\n'
try "pip cannot get ${packages[*]}: is there a network, or a mirror in pip's configuration?" \
    "$folder/bin/python3" -m pip install --quiet --disable-pip-version-check "${packages[@]}"
try "the jax in $folder does not load" "$folder/bin/python3" -c 'import jax'
printf '%s\n' "$made_of" >"$stamp"
printf '  made: make check-jax JAX_ENV=%s\n' "$folder"
