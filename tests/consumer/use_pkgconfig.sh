#!/usr/bin/env bash
# ubep.pc, for both kinds. The shared one needs neither the headers nor the .pc files of {fmt} and
# Highway.
source "$(dirname "$0")/lib.sh"

command -v pkg-config >/dev/null && command -v make >/dev/null || exit 77
in_copy pkgconfig
library=$(dirname "$(find "$UBEP_PREFIX" -name libubep.so)")
export PKG_CONFIG_LIBDIR=$library/pkgconfig # and no other folder

make consumer consumer-static
LD_LIBRARY_PATH=$library ./consumer
expect_kind consumer shared
./consumer-static
expect_kind consumer-static static
if grep -E '/(fmt|hwy)/' main.d; then fail "a public header includes a private one"; fi
