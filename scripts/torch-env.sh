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

# shellcheck source=scripts/environment.sh
. "$(dirname "$0")/environment.sh"

[[ $# -le 1 && ${1:-} != -* ]] || fail "usage: $0 [FOLDER]"
folder=${1:-${TORCH_ENV:-/var/tmp/shoal-torch}}
packages=("torch==${TORCH_WANTED:-2.13.0}" numpy)

begin_environment torch "$folder" "${packages[@]}"
install_packages "$folder" "${packages[@]}"
try "the torch in $folder has no torch.distributed, or does not load" \
    "$folder/bin/python3" -c 'import numpy, torch.distributed as d; assert d.is_available()'
printf '%s\n' "$made_of" >"$stamp"
printf '  made: make check PYTHON=%s/bin/python3\n' "$folder"
