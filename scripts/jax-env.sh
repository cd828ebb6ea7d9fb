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

# shellcheck source=scripts/environment.sh
. "$(dirname "$0")/environment.sh"

[[ $# -le 1 && ${1:-} != -* ]] || fail "usage: $0 [FOLDER]"
folder=${1:-${JAX_ENV:-/var/tmp/shoal-jax}}

begin_environment jax "$folder" "${packages[@]}"
install_packages "$folder" "${packages[@]}"
try "the jax in $folder does not load" "$folder/bin/python3" -c 'import jax'
printf '%s\n' "$made_of" >"$stamp"
printf '  made: make check-jax JAX_ENV=%s\n' "$folder"
