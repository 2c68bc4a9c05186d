#!/usr/bin/env bash
# `ubep ps` beside a job with a stopped rank: names it and what the others wait for; beside a killed
# one it says so; and without a job it says that.
set -uo pipefail
ubep=$1
bench=
out=$(mktemp)
trap 'rm -f "$out"; [ -z "$bench" ] || kill "$bench" 2>/dev/null' EXIT
fail() {
  echo "FAIL: $1" >&2
  cat "$out" >&2
  exit 1
}
UBEP_TIMEOUT_MS=30000 "$ubep" bench --ranks 3 --tokens 64 --hidden 2048 --iters 1000000 \
  >/dev/null 2>&1 &
bench=$!
job=fork-$bench-
for _ in $(seq 200); do
  [ "$("$ubep" ps --job "$job" | grep -c 'epoch')" -eq 3 ] && break
  sleep 0.05
done
"$ubep" ps --job "$job" >"$out"
grep -q '3 ranks' "$out" || fail "no job of three ranks"
victim=$(awk '$1 == 1 { print $2 }' "$out")
kill -STOP "$victim"
sleep 0.6
"$ubep" ps --job "$job" >"$out"
grep -q "^rank 1 (process $victim, stopped) is waited for: " "$out" || fail "the stopped rank is not named"
grep -Eq '^ +0 .*: rank 1: (op|pub|out|sent|base|done) is [0-9]+, needs [0-9]+' "$out" ||
  fail "rank 0's wait is not shown"
json=$("$ubep" ps --json --job "$job" | tr -d ' \n')
for part in '"held_up_by":[1]' '"process":"stopped"' '"wait":{"for_ms":' '"peer":1'; do
  [[ $json == *"$part"* ]] || fail "the JSON has no $part: $json"
done
kill -KILL "$bench"
for _ in $(seq 100); do
  "$ubep" ps --job "$job" >"$out"
  grep -q 'no ranks' "$out" && exit 0
  sleep 0.05
done
fail "ranks remain"
