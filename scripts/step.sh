# step NAME COMMAND...: one line and the seconds when it succeeds, its whole output when it fails.
# Sourced by the other scripts.

step_log=$(mktemp)
trap 'rm -f "$step_log"' EXIT

# put_table NAME FILE: what lies between the marks "NAME begin" and "NAME end" of docs/reliability.md
# becomes FILE.
put_table() {
  sed -i -e "/<!-- $1 begin -->/,/<!-- $1 end -->/{/<!-- $1 begin -->/r $2" -e "/<!-- $1/!d}" docs/reliability.md
}

step() {
  local name=$1 start=$SECONDS note
  shift
  if ! "$@" >"$step_log" 2>&1; then
    cat "$step_log"
    printf 'FAIL  %-22s %4d s   %s\n' "$name" $((SECONDS - start)) "$*"
    return 1
  fi
  # The closing line of ctest, unittest or a check, where there is one.
  note=$(grep -E 'tests passed|^Ran [0-9]+ test|, [0-9]+ problems$' "$step_log" | tail -n 1 || true)
  printf 'ok    %-22s %4d s   %s\n' "$name" $((SECONDS - start)) "$note"
}
