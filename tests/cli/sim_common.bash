# What the tests of `ubep sim` begin with: $ubep, $root, a folder of their own, fail().
set -euo pipefail
ubep=$1 root=$2

# Without the simulator's dependencies there is no such command.
if ! "$ubep" --help | grep -q '^  sim '; then
  echo "SKIPPED: the command has no sim"
  exit 77
fi

fail() {
  echo "FAIL: $*" >&2
  exit 1
}

pod=$root/pods/generic.json
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

refuses() { # text, arguments
  local text=$1 output status=0
  shift
  output=$("$ubep" sim "$@" 2>&1 >/dev/null) || status=$?
  if [ "$status" -ne 2 ] || [[ $output != *"$text"* ]] || [[ $output == *$'\n'* ]]; then
    fail "ubep sim $*: status $status, expected 2 and one line with '$text'; got: $output"
  fi
}
