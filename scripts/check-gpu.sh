#!/usr/bin/env bash
# The device path on a real GPU, which all ranks share: every collective with exact values, training,
# and, where Python has torch with CUDA, the PyTorch backend beside gloo.
#
#   check-gpu.sh FOLDER    a build tree or a bundle (scripts/bundle.sh); the bundle's copy needs none
#
# Ends with "N passed, N failed", or with a line SKIP and the reason where there is no GPU.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=$(cd "${1:-$here/../..}" && pwd)
bin=$folder/bin
python=${PYTHON:-python3}
package=$folder/python
[[ -d $package ]] || package=$here/../worker/python
export SHOAL_LIBRARY=$folder/lib/libshoal.so PYTHONPATH=$package
log=$(mktemp)
trap 'rm -f "$log"' EXIT

if [[ ! -x $bin/shoalrun ]]; then
    printf '%s: no programs there\n' "$folder" >&2
    exit 2
fi
# A device that the library cannot open is the reason; anything else is a failure.
if ! "$bin/shoalrun" -n 1 -- "$bin/shoalperf" all_reduce -b 4 -n 1 --device cuda >"$log" 2>&1 &&
    grep -qE 'no CUDA driver|this process has 0|CUDA_ERROR_NO_DEVICE' "$log"; then
    printf 'SKIP check-gpu: %s\n' "$(grep -m 1 -oE 'GPU [0-9]+.*' "$log")"
    exit 0
fi

passed=0 failed=0
check() {
    local what=$1 status=0
    shift
    "$@" >"$log" 2>&1 </dev/null || status=$?
    if ((status == 0)); then
        passed=$((passed + 1))
        printf 'ok      %s\n' "$what"
    else
        failed=$((failed + 1))
        printf 'FAILED  %s: exit status %d\n' "$what" "$status"
        # What the ranks say comes before the daemon's log.
        grep -v ' shoald info: ' "$log" | tail -n 40
    fi
}

perf() {
    local ranks=$1
    shift
    check "$* ($ranks ranks)" "$bin/shoalrun" --timeout 120 -n "$ranks" -- "$bin/shoalperf" "$@" \
        --device cuda -w 1 -n 3
}

for ranks in 1 2 4; do
    perf "$ranks" all_reduce -b 4 -e 64M -f 64
    perf "$ranks" all_reduce -d all -o all --count 1,1001,100003
    perf "$ranks" all_reduce --in-place -b 16M -d bfloat16 -o avg
done
for collective in reduce broadcast barrier all_gather reduce_scatter gather scatter all_to_all sendrecv; do
    perf 2 "$collective" -b 100 -e 16M -f 400
done
for collective in all_gather reduce_scatter gather scatter all_to_all; do
    perf 4 "$collective" --uneven -b 1M
done
check 'two nodes' "$bin/shoalrun" --nodes 2 -n 2 -- "$bin/shoalperf" all_reduce -b 1M -e 64M -f 8 --device cuda
check 'shoal-digits' "$bin/shoalrun" -n 2 -- "$bin/shoal-digits" --device cuda

torch_with_cuda() {
    "$python" -c 'import torch, torch.distributed as d; assert d.is_available() and torch.cuda.is_available()' \
        2>/dev/null
}
# The words by which Python trains it, on 2 ranks or RANKS.
losses() {
    "$bin/shoalrun" --timeout 240 -n "${RANKS:-2}" -- "$python" "$@" --steps 10 | grep -o '"losses".*'
}
# The words by which Python trains it with shoal, and the example that does the same on gloo.
same_losses() {
    local ours theirs gloo=$package/examples/${!#}.py
    ours=$(losses "${@:1:$#-1}" --device cuda) && theirs=$(losses "$gloo" --backend gloo --device cuda) &&
        compare "$ours" "$theirs"
}
# A script for SMP by its name, on 4 ranks, and the same on gloo and the CPU: gloo has not what FSDP wants of a GPU, and
# FSDP takes a GPU that it sees.
same_losses_of_smp() {
    local ours theirs words=(-m shoal.smddp "$package/examples/$1.py")
    ours=$(RANKS=4 losses "${words[@]}" --device cuda) &&
        theirs=$(CUDA_VISIBLE_DEVICES='' RANKS=4 losses "${words[@]}" --backend gloo) &&
        compare "$ours" "$theirs"
}
compare() {
    "$python" - "$@" <<'PYTHON'
import json, sys
ours, theirs = (json.loads("{" + text)["losses"] for text in sys.argv[1:])
print(ours, theirs)
sys.exit(not (len(ours) == len(theirs) == 10 and all(abs(a - b) < 1e-3 for a, b in zip(ours, theirs))))
PYTHON
}
if torch_with_cuda; then
    check 'calls on CUDA tensors' "$bin/shoalrun" --timeout 120 -n 2 -- "$python" "$here/gpu_calls.py"
    examples=$package/examples
    check "digits in torch's DDP on CUDA tensors, as on gloo" \
        same_losses "$examples/digits_ddp.py" digits_ddp
    check "torch's DDP on CUDA tensors, as on gloo" \
        same_losses "$examples/transformer_ddp.py" transformer_ddp
    check "shoal's DDP on CUDA tensors, as on gloo" \
        same_losses "$examples/transformer_ddp.py" --zero-copy transformer_ddp
    check "a script for SMDDP, on CUDA tensors, as on gloo" \
        same_losses -m shoal.smddp "$examples/digits_smddp.py" digits_ddp
    check "a script for SMDDP's first versions, on CUDA tensors, as on gloo" \
        same_losses -m shoal.smddp "$examples/digits_smdataparallel.py" digits_ddp
    check "a script for SMP with a mixture of experts, on CUDA tensors, as on gloo" \
        same_losses_of_smp digits_experts
    check "a script for SMP with parts of layers and shards, on CUDA tensors, as on gloo" \
        same_losses_of_smp transformer_smp
else
    printf 'SKIP check-gpu torch: %s has no torch with CUDA\n' "$python"
fi
printf '%d passed, %d failed\n' "$passed" "$failed"
((failed == 0))
