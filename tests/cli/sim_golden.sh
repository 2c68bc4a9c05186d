#!/usr/bin/env bash
# What `ubep sim` prints for small instances, byte for byte but for its wall time: tests/cli/golden.
# A text that changes was meant to, or is a bug. The files are written again with
#
#   UBEP_WRITE_GOLDEN=1 bash tests/cli/sim_golden.sh build/dev/tools/ubep/ubep .
source "$(dirname "$0")/sim_common.bash"
cd "$root"
status=0

golden() { # name, arguments
  local name=$1 file=tests/cli/golden/$1.txt
  shift
  { echo "ubep sim $*" | sed "s|$folder/||g"; "$ubep" sim "$@" | grep -v ' events in '; } >"$folder/$name.txt"
  if [ -n "${UBEP_WRITE_GOLDEN:-}" ]; then cp "$folder/$name.txt" "$file"; fi
  diff -u "$file" "$folder/$name.txt" || { echo "FAIL: $name" >&2; status=1; }
}

small=(--pod pods/generic.json --ranks 9 --lanes 3 --hidden 1024 --experts 18 --topk 2)
golden compare "${small[@]}" --compare bsp,push,push:fence,pull --sweep tokens=4,16 --seeds 2
golden one "${small[@]}" --tokens 8 --routing zipf:1 --variants --payload
golden ablate "${small[@]}" --tokens 8 --ablate --seeds 2
golden sensitivity "${small[@]}" --tokens 8 --compare bsp,push --sensitivity "$folder/moves.svg"
golden tpot tpot --pod pods/generic.json --ranks 8 --lanes 2 --tokens 4 --preset qwen3-30b \
  --layer-us 100 --jitter-us 3 --expert-us 10 --routing zipf:0.8
golden front tpot --pod pods/generic.json --lanes 2 --preset glm-4.7 --seeds 2 --layer-us 50 \
  --token-us 1 --micro-batches 2 --sweep ranks=6,8,tokens=2,4 --tpot-limit-ms 5
golden difference tpot --pod pods/generic.json --ranks 8 --lanes 2 --tokens 4 --preset deepseek-v3.2

# Files, too: the chart, and a trace.
if [ -n "${UBEP_WRITE_GOLDEN:-}" ]; then cp "$folder/moves.svg" tests/cli/golden/moves.svg; fi
diff -u tests/cli/golden/moves.svg "$folder/moves.svg" || { echo "FAIL: moves.svg" >&2; status=1; }
"$ubep" sim --pod pods/generic.json --ranks 2 --lanes 2 --hidden 64 --experts 2 --topk 1 --tokens 2 \
  --trace "$folder/trace.json" >/dev/null
if [ -n "${UBEP_WRITE_GOLDEN:-}" ]; then cp "$folder/trace.json" tests/cli/golden/trace.json; fi
diff -u tests/cli/golden/trace.json "$folder/trace.json" || { echo "FAIL: trace.json" >&2; status=1; }
exit "$status"
