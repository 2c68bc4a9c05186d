#!/usr/bin/env bash
# explore.sh [--long]: explores protocol.pml and views.pml to the end with Spin, and shows that it finds
# the faults that are planted in them. --long: larger models, too, which take minutes and some GB.
#
# One row for each exploration; seconds are CPU time, without what it takes to build the program.
# --long ends with the date and Spin's version. -DCOLLAPSE stores states without loss; nothing that
# could miss a state (bit states, hash compaction) is used.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
if ! command -v spin >/dev/null; then
  echo "SKIPPED: spin is not installed" >&2
  exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
TIMEFORMAT='%U %S'

fail() { # message
  echo "FAIL: $1" >&2
  tail -q -n 5 spin.log pan.log >&2
  exit 1
}

explore() { # level of optimisation, model, definitions
  local level=$1 model=$2 user system
  shift 2
  what="$model ${*#-D}"
  rm -f pan.log
  spin -a "$@" "$here/$model.pml" >spin.log &&
    ${CC:-cc} "-O$level" -w -DSAFETY -DCOLLAPSE -DMEMLIM=10000 -o pan pan.c || fail "$what: not built"
  { time timeout 1200 ./pan -m1000000 -w24 >pan.log 2>&1; } 2>time.log
  read -r user system <time.log
  seconds=$(awk "BEGIN { printf \"%.1f\", $user + $system }")
  found=$(grep -o 'errors: [0-9]*' pan.log | grep -o '[0-9]*')
  states=$(sed -n 's/^ *\([0-9e+.]*\) states, stored.*/\1/p' pan.log)
  depth=$(sed -n 's/.*depth reached \([0-9]*\).*/\1/p' pan.log)
  memory=$(sed -n 's/^ *\([0-9.]*\)\.[0-9]*.*total actual memory usage.*/\1/p' pan.log)
  if [ -z "$found" ] || grep -q 'max search depth too small\|out of memory\|not completed' pan.log; then
    [ "${found:-0}" != 0 ] || fail "$what: not explored to the end"
  fi
}

row() { # result
  printf '| `%s` | %s | %s | %s | %s | %s |\n' "$what" "$states" "$depth" "$seconds" "$memory" "$1"
}

right() {
  explore "$@"
  [ "$found" -eq 0 ] || fail "$what: $(grep -m 1 '^pan:1' pan.log)"
  row 'no error'
}

wrong() {
  explore 0 "$@"
  [ "$found" -ne 0 ] || fail "$what: the planted fault was not found"
  row "$(grep -om 1 'assertion violated\|invalid end state' pan.log)"
}

echo '| model | states | depth | s | MB | result |'
echo '|---|---|---|---|---|---|'
for table in 0 1 2; do
  for looks in 0 1; do
    right 0 protocol -DR=2 -DN=1 -DTABLE=$table -DLOOKS=$looks
  done
  right 1 protocol -DR=3 -DN=1 -DTABLE=$table -DLOOKS=0
done
right 2 protocol -DR=2 -DN=2 -DTABLE=0 -DLOOKS=0
for members in 1 2; do
  right 0 views -DR=2 -DMEMBERS=$members -DOPS=6
done
for members in 1 2 3; do
  right 1 views -DR=3 -DMEMBERS=$members -DOPS=5
done
for fault in 1 2 3 4 5 6 8 10; do
  wrong protocol -DR=2 -DDEATHS=0 -DMUTATION=$fault
done
wrong protocol -DR=3 -DDEATHS=1 -DLOOKS=1 -DMUTATION=7
wrong protocol -DR=2 -DDEATHS=0 -DTABLE=1 -DMUTATION=9
for fault in 1 2 3 4 5 6 7 8 9 10 11; do
  wrong views -DR=3 -DMEMBERS=2 -DOPS=5 -DDEATHS=1 -DMUTATION=$fault
done
if [ "${1:-}" = --long ]; then
  for table in 0 1 2; do
    right 2 protocol -DR=3 -DN=1 -DTABLE=$table -DLOOKS=1
  done
  for pushers in 0 1 2 3; do # ranks are alike apart from this
    right 2 protocol -DR=3 -DN=2 -DRELEASES=0 -DDEATHS=1 -DPUSHERS=$pushers
  done
  for pushers in 0 1 2; do
    right 2 protocol -DR=4 -DN=1 -DDEATHS=1 -DPUSHERS=$pushers
  done
  for pushers in 3 4; do
    right 2 protocol -DR=4 -DN=1 -DRELEASES=0 -DDEATHS=1 -DPUSHERS=$pushers
  done
  right 2 views -DR=3 -DMEMBERS=2 -DOPS=6
  right 2 views -DR=4 -DMEMBERS=3 -DOPS=4
  right 2 protocol -DR=2 -DN=2 -DTABLE=2 -DLOOKS=0
  right 2 protocol -DR=2 -DN=2 -DTABLE=0 -DLOOKS=1
  right 2 protocol -DR=2 -DN=2 -DTABLE=1 -DLOOKS=0
  right 2 protocol -DR=2 -DN=2 -DTABLE=1 -DLOOKS=1
  echo "$(date -u +%Y-%m-%d), $(spin -V)"
fi
