#!/usr/bin/env bash
# libubep.so exports exactly what exports.txt lists, and its soname has the right numbers.
# After a wanted change: exports.sh --list >exports.txt, with UBEP_PREFIX set.
source "$(dirname "$0")/lib.sh"

library=$(find "$UBEP_PREFIX" -name libubep.so)
exported() {
  nm -D --defined-only "$library" | cut -d ' ' -f 3 | c++filt -p | sed 's/\[abi:[^]]*\]//' \
    | LC_ALL=C sort
}
if [ "${1:-}" = --list ]; then
  exported
  exit
fi
exported | diff "$(dirname "$0")/exports.txt" - || fail "exports differ: < expected, > found"

version=$(sed -n 's/^project(ubep VERSION \([0-9.]*\).*/\1/p' "$UBEP_SOURCE/CMakeLists.txt")
[ "$(basename "$(realpath "$library")")" = "libubep.so.$version" ] || fail "name of $library"
readelf -d "$library" | grep -q "SONAME.*\[libubep.so.${version%.*}\]" || fail "soname"
