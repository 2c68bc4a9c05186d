#!/usr/bin/env bash
# use_cmake.sh shared|static CMAKE-ARGUMENT...: find_package(ubep) finds the wanted kind.
source "$(dirname "$0")/lib.sh"

kind=$1
shift
in_copy cmake
"$CMAKE" -S . -B build -D CMAKE_PREFIX_PATH="$UBEP_PREFIX" "$@"
"$CMAKE" --build build
build/consumer
expect_kind build/consumer "$kind"
