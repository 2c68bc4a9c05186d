#!/usr/bin/env bash
# Installs, moves the prefix, and looks for paths that the move would break.
source "$(dirname "$0")/lib.sh"

first=$(dirname "$UBEP_PREFIX")/first
rm -rf "$first" "$UBEP_PREFIX"

"$CMAKE" --install "$UBEP_BUILD" --prefix "$first" --component ubep-runtime >/dev/null
unwanted=$(find "$first" -type f ! -name "libubep.so.*" ! -path "$first/bin/ubep" ! -name LICENSE)
[ -z "$unwanted" ] || fail "component ubep-runtime has $unwanted"
[ -z "$(find "$first" -name '*.so')" ] || fail "component ubep-runtime has the name for linking"
[ -n "$(find "$first" -name LICENSE)" ] || fail "no licence"

"$CMAKE" --install "$UBEP_BUILD" --prefix "$first" >/dev/null
mv "$first" "$UBEP_PREFIX"
for path in "$first" "$UBEP_SOURCE" "$UBEP_BUILD"; do
  if named=$(grep -rlI -F "$path" "$UBEP_PREFIX"); then fail "$path is named in $named"; fi
done
if [ -e "$UBEP_PREFIX/bin/ubep" ]; then
  "$UBEP_PREFIX/bin/ubep" bench --ranks 2 --tokens 4 --check >/dev/null || fail "the moved command"
fi
