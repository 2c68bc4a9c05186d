#!/usr/bin/env bash
# explore.sh [--long]: explores protocol.pml to the end with Spin, and shows that it finds the faults
# that are planted in it. --long: larger models, which take minutes and some GB.
set -uo pipefail
model=$(cd "$(dirname "$0")" && pwd)/protocol.pml
if ! command -v spin >/dev/null; then
  echo "SKIPPED: spin is not installed" >&2
  exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1

explore() { # definitions
  spin -a "$@" "$model" >spin.log && ${CC:-cc} -O2 -w -DSAFETY -DCOLLAPSE -DMEMLIM=12000 -o pan pan.c \
    && ./pan -m100000 >pan.log 2>&1
  found=$(grep -o 'errors: [0-9]*' pan.log | grep -o '[0-9]*')
  states=$(sed -n 's/^ *\([0-9e+.]*\) states, stored.*/\1/p' pan.log)
  depth=$(sed -n 's/.*depth reached \([0-9]*\).*/\1/p' pan.log)
  if [ -z "$found" ] || grep -q 'max search depth too small\|out of memory' pan.log; then
    echo "FAIL: $*: not explored to the end" >&2
    tail -n 5 spin.log pan.log >&2
    exit 1
  fi
}

right() {
  explore "$@"
  if [ "$found" -ne 0 ]; then
    echo "FAIL: $*" >&2
    grep -m 3 '^pan:' pan.log >&2
    exit 1
  fi
  printf '%-52s %10s states, depth %4s: no error\n' "$*" "$states" "$depth"
}

wrong() {
  explore "$@"
  if [ "$found" -eq 0 ]; then
    echo "FAIL: $*: the planted fault was not found" >&2
    exit 1
  fi
  printf '%-52s %s\n' "$*" "$(grep -om 1 'assertion violated\|invalid end state' pan.log)"
}

for table in 0 1; do
  right -DR=2 -DN=1 -DEPOCHS=4 -DDEATHS=0 -DTABLE=$table
  right -DR=2 -DN=1 -DEPOCHS=3 -DDEATHS=1 -DTABLE=$table
done
right -DR=2 -DN=2 -DEPOCHS=3 -DDEATHS=0 -DTABLE=0
for mutation in 1 2 3 4 5 6; do
  wrong -DR=2 -DN=1 -DEPOCHS=3 -DDEATHS=0 -DMUTATION=$mutation
done
if [ "${1:-}" = --long ]; then
  right -DR=2 -DN=2 -DEPOCHS=3 -DDEATHS=0 -DTABLE=1
  for table in 0 1; do
    right -DR=2 -DN=2 -DEPOCHS=3 -DDEATHS=1 -DTABLE=$table
    right -DR=3 -DN=1 -DEPOCHS=2 -DDEATHS=0 -DTABLE=$table
  done
fi
