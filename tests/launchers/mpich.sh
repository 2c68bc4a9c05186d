#!/usr/bin/env bash
# Ranks of MPICH's mpiexec.
# shellcheck source=tests/launchers/common.bash
source "$2/tests/launchers/common.bash"
skip_without mpiexec.mpich
launcher=(mpiexec.mpich -n)
rank_of='$PMI_RANK'
check_launcher
