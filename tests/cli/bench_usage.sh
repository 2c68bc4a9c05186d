#!/usr/bin/env bash
# Input errors: exit code 2 and one line that names the option.
set -uo pipefail
ubep=$1

refuses() { # text, arguments
  local text=$1 output status
  shift
  output=$("$ubep" "$@" 2>&1 >/dev/null)
  status=$?
  if [ "$status" -ne 2 ] || [[ $output != *"$text"* ]]; then
    echo "FAIL: ubep $*: status $status, expected 2 and '$text'; got: $output" >&2
    exit 1
  fi
}

refuses "--ranks is 0" bench --ranks 0
refuses "--ranks is 65" bench --ranks 65
refuses "--tokens has 2 numbers" bench --ranks 3 --tokens 1,2
refuses "'x' is not a number" bench --tokens x
refuses "--topk is 65" bench --topk 65
refuses "--layout: 'flat'" bench --layout flat
refuses "--path: 'pusch'" bench --path pusch
refuses "bsp needs layout expert_major" bench --compare bsp@rank_major
refuses "allgather needs layout rank_major" bench --path allgather --layout expert_major
refuses "read needs layout rank_major" bench --path read --layout expert_major
refuses "hot" bench --topk 8 --routing hot:3
refuses "nowhere" bench --routing file:nowhere
refuses "qwen3-30b-decode" bench --preset qwen
refuses "--max-tokens 3 with --tokens 4 runs in rounds" bench --tokens 4 --max-tokens 3 --lanes 2
refuses "--quant: 'fp4'" bench --quant fp4
refuses "--activations in-place excludes --quant" bench --quant fp8 --activations in-place
refuses "exclude" bench --ranks 2 --compare-ranks 2,4
refuses "--path and --ablate exclude" bench --ablate --path push
refuses "--compare and --ablate exclude" bench --ablate --compare bsp@expert_major
refuses "--explain and --ablate exclude" bench --ablate --explain
refuses "needs layout expert_major, not rank_major" bench --ablate --layout rank_major
refuses "in-place or copied" bench --ablate --activations both
refuses "is not a number of up to 18 digits" bench --seed -1
refuses "--lanes is 65" bench --lanes 65
refuses "--roles: '1:1:1'" bench --lanes 4 --roles 1:1:1
refuses "--ablate with --roles needs --lanes" bench --ablate --roles 1:2:1
refuses "--input" run --output y
refuses "subcommand" ""

# Limits of the process: told at once, by name.
limited() { # text, ulimit argument and value, ranks
  local output status start=$SECONDS
  output=$(ulimit "$2" "$3" && "$ubep" bench --ranks "$4" --iters 2 2>&1 >/dev/null)
  status=$?
  if [ "$status" -ne 2 ] || [[ $output != *"$1"* ]] || [ $((SECONDS - start)) -gt 15 ]; then
    echo "FAIL: ulimit $2 $3, $4 ranks: status $status after $((SECONDS - start)) s: $output" >&2
    exit 1
  fi
}
limited "ulimit -n" -n 24 12
limited "ulimit -f" -f 1000 2
