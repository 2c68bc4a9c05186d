# For the tests beside it: what ranks that something else started must do, whoever started them.
#
#   launcher=(mpirun -n)      # "${launcher[@]}" RANKS COMMAND... starts them and waits
#   rank_of='$PMI_RANK'       # how a shell in a rank calls its rank
#   check_launcher
#
# $ubep and $folder are set. Each launch has a time limit of its own.
set -uo pipefail
ubep=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export UBEP_TIMEOUT_MS=20000

fail() {
  echo "FAIL: $*" >&2
  exit 1
}

skip_without() {
  command -v "$1" >/dev/null && return
  echo "SKIPPED: no $1 here, so nothing is known of it ('scripts/deps test' installs it)"
  exit 77
}

launch() { # ranks, command
  local ranks=$1
  shift
  timeout -k 5 60 "${launcher[@]}" "$ranks" "$@"
}

# Waits for these processes; the status is the worst of theirs.
worst_of() {
  local process status worst=0
  for process in "$@"; do
    wait "$process"
    status=$?
    [ "$status" -le "$worst" ] || worst=$status
  done
  return "$worst"
}

# The checks' outcome of a report in JSON.
outcome() { grep -E '"(passed|mismatches|calc_diff|tokens|ranks)"' -A5 "$1" | grep -v us; }

# Lines of ours; launchers add their own.
our_lines() { grep -c -E '^(ubep|The following arg)' "$1"; }

point=(--tokens 7,0,19,3 --hidden 100 --topk 5 --experts 17 --iters 3 --check)

same_checks_as_forked() {
  "$ubep_alone" bench --ranks 4 "${point[@]}" --json "$folder/forked" >/dev/null || fail "forked ranks"
  launch 4 "$ubep" bench "${point[@]}" --json "$folder/launched" >"$folder/out" 2>"$folder/err" \
    || fail "status $?: $(cat "$folder/err")"
  grep -q '"passed": true' "$folder/launched" || fail "no check in the report"
  [ "$(outcome "$folder/forked")" = "$(outcome "$folder/launched")" ] || fail "other checks"
  [ "$(grep -c '^check ' "$folder/out")" -eq 1 ] || fail "not one report: $(cat "$folder/out")"
}

same_file_as_forked() {
  python3 - "$folder/x" <<'PYTHON'
import json, struct, sys
tokens, hidden, topk = 9, 16, 3
parts = {"x": ("F32", [tokens, hidden], struct.pack(f"{tokens * hidden}f", *range(tokens * hidden))),
         "topk_idx": ("I32", [tokens, topk], struct.pack("27i", *[i * 5 % 11 for i in range(27)])),
         "topk_weights": ("F32", [tokens, topk], struct.pack("27f", *[i / 8 for i in range(27)]))}
head, body = {}, b""
for name, (dtype, shape, data) in parts.items():
    head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
    body += data
head = json.dumps(head).encode()
open(sys.argv[1], "wb").write(struct.pack("<Q", len(head)) + head + body)
PYTHON
  "$ubep_alone" run --ranks 4 --expert scale --input "$folder/x" --output "$folder/y.forked" || fail "forked run"
  launch 4 "$ubep" run --expert scale --input "$folder/x" --output "$folder/y.launched" \
    2>"$folder/err" || fail "run: status $?: $(cat "$folder/err")"
  cmp "$folder/y.forked" "$folder/y.launched" || fail "ubep run: other sums than with forked ranks"
}

refuses_in_one_line() { # text, arguments
  local text=$1 status
  shift
  launch 3 "$ubep" "$@" >"$folder/out" 2>"$folder/err"
  status=$?
  [ "$status" -eq 2 ] || fail "ubep $*: status $status, expected 2: $(cat "$folder/err")"
  grep -q -e "$text" "$folder/err" || fail "ubep $*: no '$text' in: $(cat "$folder/err")"
  [ "$(our_lines "$folder/err")" -eq 1 ] || fail "ubep $*: not one line: $(cat "$folder/err")"
}

two_jobs_at_once() {
  local first
  launch 2 "$ubep" bench --tokens 9 --iters 200 --check >"$folder/out.1" 2>&1 &
  first=$!
  launch 2 "$ubep" bench --tokens 5 --iters 200 --check >"$folder/out.2" 2>&1 \
    || fail "second of two jobs: $(cat "$folder/out.2")"
  wait "$first" || fail "first of two jobs: $(cat "$folder/out.1")"
}

# A shell that stays between launcher and rank.
ranks_in_wrappers() {
  launch 3 sh -c '"$0" "$@"; exit $?' "$ubep" bench --tokens 9 --iters 3 --check >"$folder/out" 2>&1 \
    || fail "in wrappers: $(cat "$folder/out")"
}

a_killed_rank_ends_all() {
  local job pids pid begin status
  rm -f "$folder"/pid.*
  launch 3 sh -c "echo \$\$ >\"\$0/pid.$rank_of\"; exec \"\$@\"" "$folder" \
    "$ubep" bench --tokens 16 --hidden 256 --iters 1000000 >"$folder/out" 2>"$folder/err" &
  job=$!
  for _ in $(seq 200); do
    pids=$(cat "$folder"/pid.? 2>/dev/null | tr '\n' ' ')
    [ "$(wc -w <<<"$pids")" -eq 3 ] && break
    sleep 0.05
  done
  [ "$(wc -w <<<"$pids")" -eq 3 ] || fail "ranks did not start: $(cat "$folder/err")"
  sleep 1
  begin=$SECONDS
  kill -9 "$(cat "$folder/pid.2")" || fail "rank 2 had ended: $(cat "$folder/err")"
  wait "$job"
  status=$?
  case $status in 0 | 124 | 125 | 126 | 127) fail "status $status after a kill" ;; esac
  [ $((SECONDS - begin)) -le 10 ] || fail "$((SECONDS - begin)) s until all had ended"
  [ "$(our_lines "$folder/err")" -le 1 ] || fail "more than one line: $(cat "$folder/err")"
  grep -q -i -E 'rank 2|signal.*9|killed' "$folder/out" "$folder/err" || fail "nothing tells of the kill"
  for pid in $pids; do
    for _ in $(seq 40); do [ -e "/proc/$pid" ] && sleep 0.05; done
    [ ! -e "/proc/$pid" ] || fail "process $pid remains"
  done
}

# Without the launcher's variables, should this test itself run below one.
ubep_alone=$folder/alone
printf '#!/bin/sh\nexec env -i PATH="$PATH" "%s" "$@"\n' "$ubep" >"$ubep_alone"
chmod +x "$ubep_alone"

check_launcher() {
  same_checks_as_forked
  same_file_as_forked
  launch 3 "$ubep" bench --ranks 3 --iters 2 --check >"$folder/out" 2>&1 || fail "--ranks of the world"
  refuses_in_one_line "--ranks is 2, but a launcher started 3 ranks" bench --ranks 2
  refuses_in_one_line "--ranks is 2, but a launcher started 3 ranks" run --ranks 2 --input x --output y
  refuses_in_one_line "nowhere" run --input "$folder/nowhere" --output "$folder/y"
  refuses_in_one_line "--no-option" bench --no-option
  two_jobs_at_once
  ranks_in_wrappers
  a_killed_rank_ends_all
}
