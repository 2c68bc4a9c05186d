#!/usr/bin/env bash
# Ranks on several hosts: the same checks, what crossed between them, a refusal, a death, and who is where.
set -uo pipefail
ubep=$1 root=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() { echo "FAIL: $*: $(cat "$folder/err")" >&2; exit 1; }
on_hosts() { timeout -k 5 50 "$root/scripts/hosts" "$@" >"$folder/out" 2>"$folder/err"; }

on_hosts 1x1 -- true
[ $? -eq 77 ] && { cat "$folder/err"; exit 77; }
"$ubep" info >"$folder/out" 2>"$folder/err" || fail "ubep info"
grep -q '^between hosts: UCX [0-9]' "$folder/out" || { cat "$folder/out"; exit 77; }
grep -q 'ranks on' "$folder/out" && fail "ubep info knows of ranks"

on_hosts 1,2 -- "$ubep" info || fail "ubep info on hosts"
for line in '3 ranks on 2 hosts' 'rank  host     0   1   2' '   0  host0    - ucx ucx' '   2  host1  ucx shm   -'; do
  grep -qF -- "$line" "$folder/out" || fail "no '$line' in $(cat "$folder/out")"
done

shape=(--tokens 7 --hidden 256 --topk 4 --experts 16 --layout rank_major)
on_hosts 2x2 -- "$ubep" bench "${shape[@]}" --iters 25 --warmup 2 --check --compare relay,push,allgather \
  --json - || fail "bench"
python3 - "$folder/out" <<'CHECK' || fail "the result: $(cat "$folder/out")"
import json, sys
point = json.load(open(sys.argv[1]))["points"][0]
assert point["check"]["passed"]
assert point["hosts"]["names"] == ["host0", "host0", "host1", "host1"]
least = set()
for path in point["paths"]:
    crossed = path["between_hosts"]
    least.add(crossed["minimum_bytes_per_cycle"])
    low, high = (1, 1.6) if path["path"] == "relay" else (1.1, 4)  # rows of 512 bytes, and the routing
    assert low <= crossed["bytes_over_minimum"] <= high, path
    assert path["cycle"]["p50"] > 0
assert len(least) == 1 and {path["path"] for path in point["paths"]} == {"relay", "push", "allgather"}
CHECK
grep -q 'KiB between hosts' "$folder/err" || fail "no heading of what crossed"

on_hosts 2x1 -- "$ubep" bench "${shape[@]}" --quant fp8 --dtype fp32 --iters 1 --check || fail "bench, quantised"

on_hosts 2x1 -- "$ubep" bench "${shape[@]}" --path read
[ $? -eq 2 ] || fail "path read is not refused"
grep -q 'path read .*ranks of one host' "$folder/err" || fail "why path read is refused"

export UBEP_TIMEOUT_MS=8000 ubep
# shellcheck disable=SC2016  # for the ranks
on_hosts 2x2 -- sh -c 'stop=; [ "$UBEP_RANK" = 3 ] && stop="timeout -s KILL 3"
  exec $stop "$ubep" bench "$@"' sh "${shape[@]}" --iters 1000000
for rank in 0 1 2; do
  # Of the death, or of another rank that gave up because of it before this one had heard.
  grep -q "hosts: rank $rank ended with status [13]" "$folder/err" || fail "rank $rank after the death of rank 3"
done
grep -q 'ubep bench: .*rank 3' "$folder/err" || fail "nobody names rank 3"

export UBEP_TIMEOUT_MS=3000
on_hosts 2x1 --pause 1@2 --resume 1@14 -- "$ubep" bench "${shape[@]}" --iters 1000000
grep -q 'hosts: rank 0 ended with status 4' "$folder/err" || fail "rank 0 while rank 1 is stopped"
grep -q 'hosts: rank 1 ended with status [134]' "$folder/err" || fail "rank 1 once it goes on"
grep -q 'ubep bench: .*rank 1' "$folder/err" || fail "nobody names rank 1"
