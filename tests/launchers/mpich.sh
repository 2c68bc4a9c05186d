#!/usr/bin/env bash
# Ranks of MPICH's mpiexec.
# shellcheck source=tests/launchers/common.bash
source "$2/tests/launchers/common.bash"
skip_without mpiexec.mpich
launcher=(mpiexec.mpich -n)
rank_of='$PMI_RANK'
check_launcher

# Around it something that was rank 0 of as many: it is not taken for a wrapper.
PMI_RANK=0 PMI_SIZE=3 launch 3 "$ubep" bench --iters 2 --check >"$folder/out" 2>&1 \
  || fail "below another rank 0: $(cat "$folder/out")"
