#!/usr/bin/env bash
# --version: three lines, the first with the version that CMake knows.
set -euo pipefail
ubep=$1 root=$2

version=$(sed -n 's/^project(ubep VERSION \([0-9.]*\).*/\1/p' "$root/CMakeLists.txt")
text=$("$ubep" --version)
if [[ $text != "ubep $version, wire "* ]] || [ "$(wc -l <<<"$text")" -ne 3 ]; then
  echo "FAIL: --version, of version $version: $text" >&2
  exit 1
fi
