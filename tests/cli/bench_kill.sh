#!/usr/bin/env bash
# kill -9 of one rank: the others end within 2 s with exit code 3 and one line that names it.
set -uo pipefail
ubep=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
before=$(ls /dev/shm)

for victim in 1 2 3 4; do
  "$ubep" bench --ranks 4 --tokens 16 --hidden 512 --iters 1000000 >"$folder/out" 2>"$folder/err" &
  bench=$!
  for _ in $(seq 200); do
    [ "$(pgrep -c -P "$bench")" -eq 4 ] && break
    sleep 0.05
  done
  sleep "0.$victim"
  kill -9 "$(pgrep -P "$bench" | sed -n "${victim}p")"
  begin=$(date +%s%N)
  wait "$bench"
  status=$?
  ms=$((($(date +%s%N) - begin) / 1000000))
  lines=$(grep -c . "$folder/err")
  if [ "$status" -ne 3 ] || [ "$ms" -gt 2000 ] || [ "$lines" -ne 1 ] ||
    ! grep -q "rank $((victim - 1)) " "$folder/err"; then
    echo "FAIL: status $status after $ms ms, $lines lines: $(cat "$folder/err")" >&2
    exit 1
  fi
  if pgrep -P "$bench" >/dev/null; then
    echo "FAIL: processes remain" >&2
    exit 1
  fi
done
[ "$before" = "$(ls /dev/shm)" ] || { echo "FAIL: left in /dev/shm: $(ls /dev/shm)" >&2; exit 1; }
