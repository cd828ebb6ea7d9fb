#!/usr/bin/env bash
# Install the wheel by pip alone, in a virtual environment of bare roots, and train with it.
#
#   scripts/packages/check-wheel.sh WHEEL TORCH SUITE=BARE...
#
# BARE is a root of scripts/debian-root.sh for SUITE, of which a copy is used: Python there has no
# compiler, no torch and nothing that shoal needs. TORCH is one for trixie, with torch 2.6 and a later
# glibc; nothing is left there. The native backend is tried with the torch that it was built for, in TORCH_ENV, the
# environment of scripts/torch-env.sh (default: /var/tmp/shoal-torch). The last line is "N passed, N failed", with
# ", N skipped" where a root cannot be made here.
set -euo pipefail
cd "$(dirname "$0")/../.."

fail() {
    printf 'check-wheel: %s\n' "$*" >&2
    exit 1
}

(($# >= 3)) || fail "usage: $0 WHEEL TORCH SUITE=BARE..."
wheel=$1 torch=$2
shift 2
[[ -e $wheel ]] || fail "$wheel is not there: make wheel"
copy=$(dirname "$torch")/shoal-deploy-wheel-$$
here=build/check-wheel-$$ # seen in the root of torch as well
log=$(mktemp)
# shellcheck disable=SC2317  # the trap calls it
end() {
    rm -rf --one-file-system "$copy" "$here" "$log"
}
trap end EXIT
trap 'exit 143' TERM INT HUP
passed=0 failed=0 skipped=0

# Run a command, which must end well and say what is expected, if anything is.
check() {
    local what=$1 expected=$2
    shift 2
    if "$@" >"$log" 2>&1 && { [[ ! $expected ]] || grep -q -e "$expected" "$log"; }; then
        printf 'PASS %s\n' "$what"
        passed=$((passed + 1))
    else
        printf 'FAIL %s\n' "$what"
        tail -n 20 "$log"
        failed=$((failed + 1))
    fi
}

skip() {
    printf 'SKIP %s: no such root can be made here\n' "$1"
    skipped=$((skipped + 1))
}

in_bare() {
    scripts/debian-root.sh "$suite" "$copy" -- "$@"
}

in_torch() {
    scripts/debian-root.sh trixie "$torch" -- env PYTHONDONTWRITEBYTECODE=1 "$@"
}

check_bare() {
    local get='apt-get -qq update && apt-get -qq install -y --no-install-recommends python3-venv'
    if ! in_bare bash -c "$get" >"$log" 2>&1; then
        tail -n 5 "$log"
        skip "$suite: a bare root with pip"
        return
    fi
    cp "$wheel" "$copy/root/"
    local bin=/root/venv/bin
    printf '     %s: %s, %s\n' "$suite" "$(in_bare python3 --version)" "$(in_bare ldd --version | head -n 1)"
    check "$suite: a virtual environment" '' in_bare python3 -m venv /root/venv
    check "$suite: pip installs the wheel, without network" 'Successfully installed shoal' \
        in_bare unshare --net $bin/pip install --no-index "/root/$(basename "$wheel")"
    check "$suite: the commands are there" 'shoald 0' in_bare $bin/shoald --version
    check "$suite: the installation tries itself" 'PASS  two nodes' in_bare $bin/python -m shoal
    # shellcheck disable=SC2016  # the shell inside expands
    check "$suite: its libraries are its own" '_bundle/bin/../lib/libfabric' \
        in_bare bash -c 'ldd /root/venv/lib/python3*/site-packages/shoal/_bundle/bin/shoald'
    check "$suite: JAX's library is there" '_bundle/lib/libshoal-mpitrampoline.so' in_bare $bin/shoalrun --print jax
    check "$suite: pip removes it" 'Successfully uninstalled' in_bare $bin/pip uninstall --yes shoal
    # shellcheck disable=SC2016  # the shell inside expands
    check "$suite: nothing is left" '^left: $' \
        in_bare bash -c 'echo "left: $(find /root/venv -name "*shoal*" -not -path "*/__pycache__/*")"'
}

check_torch() {
    local bin=$here/venv/bin
    mkdir -p "$here"
    cp "$wheel" "$here/"
    printf '     %s, torch %s, %s\n' "$(in_torch python3 --version)" \
        "$(in_torch python3 -c 'import torch; print(torch.__version__)')" "$(in_torch ldd --version | head -n 1)"
    check 'an environment beside torch' '' \
        in_torch python3 -m venv --without-pip --system-site-packages "$here/venv"
    check 'pip installs the wheel beside torch' 'Successfully installed shoal' \
        in_torch python3 -m pip --python "$bin/python" install --no-index "$here/$(basename "$wheel")"
    check 'the installation tries itself with torch' 'PASS  two ranks of PyTorch' in_torch "$bin/python" -m shoal
    check 'a model is trained on two ranks' 'losses' \
        in_torch "$bin/shoalrun" --timeout 100 -n 2 -- "$bin/python" worker/python/examples/digits_ddp.py
}

check_native() {
    local python=${TORCH_ENV:-/var/tmp/shoal-torch}/bin/python3
    if ! "$python" -c 'import torch' 2>/dev/null || ! "$python" -m zipfile -l "$wheel" | grep -q shoal_native-; then
        printf 'SKIP the native backend: %s has no torch, or the wheel no native backend\n' "$python"
        skipped=$((skipped + 1))
        return
    fi
    mkdir -p "$here"
    check 'pip installs the wheel for the torch of its native backend' 'Successfully installed shoal' \
        "$python" -m pip install --no-index --target "$here/packages" "$wheel"
    local run=(env -C "$here" PYTHONPATH="$PWD/$here/packages" "$python" -m shoal)
    check 'the native backend serves' 'backend *native, .*_bundle/lib/shoal_native-torch' "${run[@]}" --no-test
    check 'two ranks use it' 'PASS  two ranks of PyTorch' env SHOAL_NATIVE=1 "${run[@]}"
}

check 'glibc is what the name says' 'needs glibc' scripts/packages/wheel.py --check "$wheel"
for pair in "$@"; do
    suite=${pair%%=*} status=0
    scripts/debian-root.sh "$suite" "${pair#*=}" --copy "$copy" || status=$?
    if ((status == 0)); then check_bare; else skip "a bare Debian, $suite"; fi
done
status=0
scripts/debian-root.sh trixie "$torch" || status=$?
if ((status == 0)); then check_torch; else skip 'a Debian 13 with torch'; fi
check_native
printf '%d passed, %d failed' "$passed" "$failed"
((skipped == 0)) || printf ', %d skipped' "$skipped"
printf '\n'
((failed == 0))
