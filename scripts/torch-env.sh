#!/usr/bin/env bash
# Make a virtual environment with PyTorch, and keep it. Silent and quick when it is there and whole.
#
#   scripts/torch-env.sh [FOLDER]    FOLDER: default TORCH_ENV, else /var/tmp/shoal-torch
#
# For releases of Debian whose python3-torch is older than 2.6, the oldest one that shoal runs on (Debian
# 12). `make check PYTHON=FOLDER/bin/python3` then tests with it, and `make check` alone where it is active.
# pip fetches torch as it is configured on this machine: 1 to 3 GB. Needs python3-venv, which
# `scripts/install-deps.sh --torch` installs where Debian's own torch is too old.
#
#   TORCH_ENV      the folder, where none is named
#   TORCH_WANTED   another version of torch, default 2.13.0
set -euo pipefail

fail() {
    printf 'torch-env: %s\n' "$*" >&2
    exit 1
}

[[ $# -le 1 && ${1:-} != -* ]] || fail "usage: $0 [FOLDER]"
folder=${1:-${TORCH_ENV:-/var/tmp/shoal-torch}}
packages=("torch==${TORCH_WANTED:-2.13.0}" numpy)
stamp=$folder/.shoal-torch # written last: of what, and by which Python

# The system's, for which Debian has the headers; a person may have others in PATH.
python=/usr/bin/python3
[[ -x $python ]] || python=$(command -v python3) || fail "there is no python3"
made_of="${packages[*]} for $("$python" --version 2>&1)"

# An upgrade of the system's Python leaves one that does not start.
if [[ -e $stamp && $(<"$stamp") == "$made_of" && -x $folder/bin/python3 ]] && "$folder/bin/python3" -c '' 2>/dev/null; then
    exit 0
fi
[[ ! -e $folder || -e $stamp || -e $folder/.shoal-torch-begun || -z $(ls -A "$folder") ]] ||
    fail "$folder is there and was not made by this script: remove it, or name another folder"

printf 'making %s with %s\n' "$folder" "$made_of"
rm -rf --one-file-system "$folder"
mkdir -p "$folder"
touch "$folder/.shoal-torch-begun"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
"$python" -m venv "$folder" >"$log" 2>&1 || {
    tail -n 5 "$log" >&2
    fail "$python makes no virtual environment: python3-venv may be missing (scripts/install-deps.sh --torch)"
}
printf '  fetching and installing with pip, some minutes\n'
"$folder/bin/python3" -m pip install --quiet --disable-pip-version-check "${packages[@]}" >"$log" 2>&1 || {
    tail -n 5 "$log" >&2
    fail "pip cannot get ${packages[*]}: is there a network, or a mirror in pip's configuration?"
}
"$folder/bin/python3" -c 'import numpy, torch.distributed as d; assert d.is_available()' >"$log" 2>&1 || {
    tail -n 5 "$log" >&2
    fail "the torch in $folder has no torch.distributed, or does not load"
}
printf '%s\n' "$made_of" >"$stamp"
printf '  made: make check PYTHON=%s/bin/python3\n' "$folder"
