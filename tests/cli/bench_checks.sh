#!/usr/bin/env bash
# `ubep bench --check` passes on odd shapes in both layouts, and its JSON says so.
set -euo pipefail
ubep=$1

check() {
  local json
  json=$("$ubep" bench --iters 4 --warmup 1 --check --json - "$@" 2>/dev/null) || json=failed
  if [[ $json != *'"passed": true'* ]]; then
    echo "FAIL: ubep bench $*" >&2
    exit 1
  fi
}

odd=(--ranks 3 --tokens 7,0,19 --hidden 1000 --topk 5 --experts 17)
for store in near far; do
  for items in read@rank_major,pull@rank_major,push@rank_major,allgather@rank_major \
    pull@expert_major,push@expert_major,bsp@expert_major pull@expert_padded,push@expert_padded; do
    check "${odd[@]}" --store "$store" --compare "$items"
  done
done
check --ranks 1 --tokens 0 --hidden 1 --topk 1 --experts 1 --dtype fp32
check --ranks 5 --tokens 3 --hidden 33 --topk 2 --experts 3 --dtype fp16 --slots 1
check --ranks 2 --tokens 300 --hidden 512 --routing zipf:1.2 --lanes 2 --layout expert_major
check --ranks 3 --tokens 250,0,90 --hidden 512 --topk 3 --experts 7 --lanes 3 \
  --compare push@expert_major,bsp@expert_major,push@rank_major,allgather@rank_major
check --ranks 4 --tokens 16 --hidden 64 --routing hot:4 --slots 4 --max-tokens 40
# Quantised rows, and layers in rounds.
for quant in fp8 fp8_pow2 fp8_ue8m0 int8 mxfp8; do
  check "${odd[@]}" --quant "$quant" --compare read@rank_major,push@rank_major,pull@expert_major,push@expert_major
done
check "${odd[@]}" --max-tokens 4 --compare read@rank_major,push@expert_major,pull@expert_padded
check "${odd[@]}" --max-tokens 8 --quant int8 --path push
