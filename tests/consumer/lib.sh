# Sourced by the scripts beside it. Environment: CMAKE, CMAKE_GENERATOR, CXX; UBEP_SOURCE and
# UBEP_BUILD, the tree and its build; UBEP_PREFIX, where the installed files were moved to.
set -euo pipefail

fail() {
  echo "FAIL: $*" >&2
  exit 1
}

# in_copy PROJECT: goes to a copy of the project, outside the tree, that ends with the script
in_copy() {
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  cp -r "$UBEP_SOURCE/tests/consumer/$1/." "$UBEP_SOURCE/tests/consumer/main.cpp" "$scratch"
  cd "$scratch"
}

# needs PROGRAM LIBRARY: is LIBRARY among the shared libraries that PROGRAM names?
needs() {
  readelf -d "$1" | grep -q "NEEDED.*\[$2"
}

# expect_kind PROGRAM shared|static
expect_kind() {
  if needs "$1" libubep; then
    [ "$2" = shared ] || fail "$1 takes the shared library"
  else
    [ "$2" = static ] || fail "$1 does not take the shared library"
  fi
}
