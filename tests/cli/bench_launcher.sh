#!/usr/bin/env bash
# Ranks of UBEP_RANK: the same checks, one report; another --ranks is an error; a death is told.
set -uo pipefail
ubep=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export UBEP_JOB="launcher-test-$$" UBEP_WORLD_SIZE=3

start() { # arguments: of bench; one process per rank, their ids in ${ranks[@]}
  ranks=()
  for rank in 0 1 2; do
    UBEP_RANK=$rank "$ubep" bench "$@" >"$folder/out.$rank" 2>"$folder/err.$rank" &
    ranks+=($!)
  done
}

start --tokens 7,0,19 --hidden 100 --topk 5 --experts 17 --iters 5 --check --json -
for rank in 0 1 2; do
  wait "${ranks[$rank]}" || { echo "FAIL: rank $rank: $(cat "$folder/err.$rank")" >&2; exit 1; }
done
grep '"passed": true' "$folder/out.0" >/dev/null || { echo "FAIL: no check in the report" >&2; exit 1; }
[ ! -s "$folder/out.1" ] || { echo "FAIL: rank 1 reports too" >&2; exit 1; }

if output=$(UBEP_RANK=0 "$ubep" bench --ranks 4 2>&1) ||
  [[ $output != *"--ranks is 4, but a launcher started 3 ranks (UBEP_RANK)"* ]]; then
  echo "FAIL: another number of ranks under a launcher: $output" >&2
  exit 1
fi

start --tokens 16 --hidden 256 --iters 1000000
sleep 1
kill -9 "${ranks[2]}"
for rank in 0 1; do
  wait "${ranks[$rank]}"
  status=$?
  [ "$status" -eq 3 ] || { echo "FAIL: rank $rank ended with $status, expected 3" >&2; exit 1; }
done
lines=$(cat "$folder"/err.[01] | grep -c 'rank 2')
[ "$lines" -eq 1 ] || { echo "FAIL: $lines lines name rank 2: $(cat "$folder"/err.*)" >&2; exit 1; }
