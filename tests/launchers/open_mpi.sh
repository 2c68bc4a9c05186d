#!/usr/bin/env bash
# Ranks of Open MPI's mpirun.
# shellcheck source=tests/launchers/common.bash
source "$2/tests/launchers/common.bash"
skip_without mpirun.openmpi
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 # containers' tests run as root
launcher=(mpirun.openmpi --oversubscribe -n)
rank_of='$OMPI_COMM_WORLD_RANK'
check_launcher

# A world of two parts is one world.
timeout 60 mpirun.openmpi --oversubscribe -n 1 "$ubep" bench --iters 2 --check : \
  -n 2 "$ubep" bench --iters 2 --check >"$folder/out" 2>&1 || fail "two parts: $(cat "$folder/out")"
