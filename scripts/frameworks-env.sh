#!/usr/bin/env bash
# Add the frameworks that `make check-frameworks` tries to an environment of torch-env.sh, and keep it. Silent
# and quick when it is there and whole.
#
#   scripts/frameworks-env.sh [FOLDER]    FOLDER: default FRAMEWORKS_ENV, else /var/tmp/shoal-frameworks
#
# pip fetches 700 MB as it is configured on this machine, and the folder takes 3 GB. torch is its build for
# the CPU, of this one version: where pip's indexes have none, nothing is fetched.
#
#   FRAMEWORKS_ENV   the folder, where none is named
set -euo pipefail

torch=2.13.0+cpu
# deepspeed is the one that pip builds: its set-up wants torch, and its operators are left out.
before=(setuptools wheel ninja)
packages=(
    accelerate==1.15.0
    transformers==5.24.0
    peft==0.21.2
    trl==1.16.0
    lightning==2.6.6
    keras==3.15.1
    pytorch-ignite==0.5.5
    'ray[train]==2.60.0'
    deepspeed==0.19.8
    torchft-nightly==2026.10.26
    megatron-core==0.16.1
    pytest parameterized expecttest # for tests that they bring
)

# shellcheck source=scripts/environment.sh
. "$(dirname "$0")/environment.sh"

[[ $# -le 1 && ${1:-} != -* ]] || fail "usage: $0 [FOLDER]"
folder=${1:-${FRAMEWORKS_ENV:-/var/tmp/shoal-frameworks}}
stamp=$folder/.shoal-frameworks # written last: of what
made_of="${packages[*]} on torch $torch"

TORCH_WANTED=$torch "$(dirname "$0")/torch-env.sh" "$folder" || fail "there is no torch in $folder to add frameworks to"
[[ ! -e $stamp || $(<"$stamp") != "$made_of" ]] || exit 0

printf 'adding %s to %s\n' "${packages[*]}" "$folder"
rm -f "$stamp"
printf 'torch==%s\n' "$torch" >"$folder/constraints.txt"
install_packages "$folder" -c "$folder/constraints.txt" "${before[@]}"
DS_BUILD_OPS=0 install_packages "$folder" -c "$folder/constraints.txt" --no-build-isolation "${packages[@]}"
# deepspeed compiles operators when ranks begin, where there is a compiler, and they would wait for its lock.
TORCH_EXTENSIONS_DIR=$folder/torch_extensions PATH=$folder/bin:$PATH try "deepspeed cannot compile its operators" \
    "$folder/bin/python3" -c '
import deepspeed
from deepspeed.accelerator import get_accelerator
for name in ("ShareMemCommBuilder", "FusedAdamBuilder"):
    builder = get_accelerator().create_op_builder(name)
    if deepspeed.ops.__compatible_ops__.get(builder.NAME):
        builder.load()'
printf '%s\n' "$made_of" >"$stamp"
printf '  made: make check-frameworks FRAMEWORKS_ENV=%s\n' "$folder"
