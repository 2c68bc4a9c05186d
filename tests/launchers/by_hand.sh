#!/usr/bin/env bash
# RANK and WORLD_SIZE, set by hand in a loop: one shell started all, which names the job.
# shellcheck source=tests/launchers/common.bash
source "$2/tests/launchers/common.bash"
unset MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID UBEP_RENDEZVOUS

# Starts some ranks of a world; the status is that of the worst.
start_ranks() { # world, "ranks", command
  local world=$1 ranks=$2 rank started=()
  shift 2
  for rank in $ranks; do
    RANK=$rank WORLD_SIZE=$world timeout -k 5 50 "$@" &
    started+=($!)
  done
  worst_of "${started[@]}"
}
by_hand() {
  local world=$1
  shift
  start_ranks "$world" "$(seq -s ' ' 0 $((world - 1)))" "$@"
}
launch() { by_hand "$@"; }
rank_of='$RANK'
check_launcher

# Who is missing is named, once, to all.
names() { # text, world, "ranks"
  local status
  UBEP_TIMEOUT_MS=1500 start_ranks "$2" "$3" "$ubep" bench --iters 2 >"$folder/out" 2>"$folder/err"
  status=$?
  [ "$status" -eq 2 ] || fail "ranks $3 of $2: status $status: $(cat "$folder/err")"
  grep -q "$1" "$folder/err" || fail "ranks $3 of $2: no '$1' in: $(cat "$folder/err")"
  [ "$(our_lines "$folder/err")" -eq 1 ] || fail "ranks $3 of $2: $(cat "$folder/err")"
}
names "rank 2 did not arrive for job 'env-$$-" 3 "0 1"
names "rank 0 did not arrive for job 'env-$$-" 3 "1 2"
names "RANK is '3', expected a number, 0..2" 3 3
names "rank 1 joined twice: processes " 3 "0 1 1"

# Two worlds that are not the same.
WORLD_SIZE=2 RANK=0 timeout 50 "$ubep" bench --iters 2 2>"$folder/err" >/dev/null &
WORLD_SIZE=3 RANK=1 timeout 50 "$ubep" bench --iters 2 2>>"$folder/err" >/dev/null
[ $? -eq 2 ] || fail "another world: $(cat "$folder/err")"
wait
grep -q "size differs: rank 0 has 2, rank 1 has 3" "$folder/err" || fail "$(cat "$folder/err")"

# Options that are not the same.
differs() { # text, options of rank 0, of rank 1
  WORLD_SIZE=2 RANK=0 timeout 50 "$ubep" bench --iters 2 $2 2>"$folder/err" >/dev/null &
  WORLD_SIZE=2 RANK=1 timeout 50 "$ubep" bench --iters 2 $3 2>>"$folder/err" >/dev/null
  [ $? -eq 2 ] || fail "'$2' and '$3': $(cat "$folder/err")"
  wait $! || [ $? -eq 2 ] || fail "rank 0 of '$2' and '$3': $(cat "$folder/err")"
  grep -q -- "$1 differs between rank 0 and rank 1" "$folder/err" || fail "$(cat "$folder/err")"
  [ "$(our_lines "$folder/err")" -eq 1 ] || fail "$(cat "$folder/err")"
}
differs --warmup "--warmup 1" "--warmup 3"
differs --check "--check" ""
differs --compare "--compare pull" "--compare push"

# Half an environment.
output=$(RANK=0 "$ubep" bench 2>&1)
[[ $? -eq 2 && $output == *"WORLD_SIZE is not set, though RANK is"* ]] || fail "half: $output"

# A shell in a Slurm step of one task is no rank; it may fork its own.
SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 \
  "$ubep" bench --ranks 2 --iters 2 --check >"$folder/out" 2>&1 || fail "Slurm shell: $(cat "$folder/out")"

# A pod that is rank 0 of another world, around the shell that starts the ranks.
RANK=0 WORLD_SIZE=1 bash -c 'for r in 0 1; do
    RANK=$r WORLD_SIZE=2 timeout 50 "$0" bench --iters 2 --check >"$1.$r" 2>&1 &
  done; wait' "$ubep" "$folder/pod"
grep -q "check    passed" "$folder/pod.0" || fail "in a pod: $(cat "$folder"/pod.?)"
