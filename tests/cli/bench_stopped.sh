#!/usr/bin/env bash
# A stopped rank: a timeout that names it, exit code 4, and nothing remains.
set -uo pipefail
ubep=$1
export UBEP_TIMEOUT_MS=1000
errors=$(mktemp)
trap 'rm -f "$errors"' EXIT
"$ubep" bench --ranks 3 --tokens 64 --hidden 2048 --iters 1000000 --activations copied \
  >/dev/null 2>"$errors" &
bench=$!
for _ in $(seq 200); do
  [ "$(pgrep -c -P "$bench")" -eq 3 ] && break
  sleep 0.05
done
sleep 0.5
kill -STOP "$(pgrep -P "$bench" | sed -n 2p)"
wait "$bench"
status=$?
if [ "$status" -ne 4 ] || ! grep -q 'rank 1' "$errors"; then
  echo "FAIL: status $status: $(cat "$errors")" >&2
  exit 1
fi
if pgrep -P "$bench" >/dev/null; then
  echo "FAIL: processes remain" >&2
  exit 1
fi
