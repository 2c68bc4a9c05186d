#!/usr/bin/env bash
# add_subdirectory(ubep) works, and installs nothing of ours.
source "$(dirname "$0")/lib.sh"

in_copy subdirectory
ln -s "$UBEP_SOURCE" ubep
"$CMAKE" -S . -B build -D CMAKE_BUILD_TYPE=None
"$CMAKE" --build build -j 2
build/consumer
"$CMAKE" --install build --prefix "$scratch/prefix" >/dev/null
installed=$(cd prefix && find . ! -type d)
[ "$installed" = ./bin/consumer ] || fail "installed: $installed"
