#!/usr/bin/env bash
# A cable is pulled while ranks of two hosts dispatch and combine: both sides name the ranks of the
# other host in time, end, and leave nothing. A host that stands still is named, and goes on.
set -uo pipefail
loop=$1
hosts=$2/scripts/hosts
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export UBEP_TIMEOUT_MS=2000

fail() {
  echo "FAIL: $1" >&2
  cat "$folder/err" >&2
  exit 1
}

# run ARGUMENTS...: sets `status` and `ms`.
run() {
  local begin
  begin=$(date +%s%N)
  timeout 60 "$hosts" "$@" >"$folder/out" 2>"$folder/err"
  status=$?
  ms=$((($(date +%s%N) - begin) / 1000000))
}

# of RANK: its lines.
of() { sed -n "s/^rank $1: //p" "$folder/err"; }

run 2x2 -- "$loop" 100
[ "$status" -eq 77 ] && exit 77
if grep -q 'need UCX' "$folder/err"; then exit 77; fi
[ "$status" -eq 0 ] || fail "status $status without any event"
for rank in 0 1 2 3; do
  of "$rank" | grep -q '^[1-9][0-9]* rounds$' || fail "rank $rank has no rounds"
done

before=$(ls /dev/shm)
run 2x2 --down 1@3 -- "$loop" 100000
[ "$status" -eq 3 ] || fail "status $status, expected 3"
# 3 s, the timeout, and twice as much to close: for what others need, and for what is on its way.
[ "$ms" -lt 13000 ] || fail "it took $ms ms"
for rank in 0 1; do
  of "$rank" | grep -Eq '(missing|lost) ranks: .*[23]' || fail "rank $rank names nobody of host 1"
done
for rank in 2 3; do
  of "$rank" | grep -Eq '(missing|lost) ranks: .*[01]' || fail "rank $rank names nobody of host 0"
done
if pgrep -f "^$loop " >/dev/null; then fail "processes remain"; fi
[ "$before" = "$(ls /dev/shm)" ] || fail "left in /dev/shm: $(ls /dev/shm)"

run 2x2 --pause 1@2 --resume 1@6 -- "$loop" 600 wait
[ "$status" -eq 0 ] || fail "status $status after a pause, expected 0"
for rank in 0 1; do
  of "$rank" | grep -q '^timeout: .*missing ranks: .*[23]' || fail "rank $rank names nobody"
done
for rank in 0 1 2 3; do
  of "$rank" | grep -q '^wrong' && fail "rank $rank has wrong bytes"
  of "$rank" | grep -q '^[1-9][0-9]* rounds$' || fail "rank $rank has no rounds"
done
exit 0
