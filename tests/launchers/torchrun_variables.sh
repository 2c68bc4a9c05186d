#!/usr/bin/env bash
# The variables that torchrun sets, set by hand: torchrun itself is not needed, and not tested.
# shellcheck source=tests/launchers/common.bash
source "$2/tests/launchers/common.bash"
export TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=0 MASTER_ADDR=127.0.0.1
launch() { # as the agent does: each rank in a session of its own, a port per job
  local world=$1 rank started=() port=$((20000 + BASHPID % 10000))
  shift
  for rank in $(seq 0 $((world - 1))); do
    MASTER_PORT=$port RANK=$rank WORLD_SIZE=$world LOCAL_WORLD_SIZE=$world \
      setsid --wait timeout -k 5 50 "$@" &
    started+=($!)
  done
  worst_of "${started[@]}"
}
rank_of='$RANK'
check_launcher

# Several hosts that are not told where to meet: at once, not after the timeout.
begin=$SECONDS
output=$(unset MASTER_ADDR; RANK=0 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 timeout 50 "$ubep" bench 2>&1)
[[ $? -eq 2 && $output == *"LOCAL_WORLD_SIZE is 2, but the world has 4 ranks (torchrun)"*UBEP_ADDRESS* ]] \
  || fail "several hosts: $output"
[ $((SECONDS - begin)) -le 5 ] || fail "several hosts: told after $((SECONDS - begin)) s"
