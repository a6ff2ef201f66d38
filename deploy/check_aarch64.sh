#!/usr/bin/env bash
# Runs the native kernel for aarch64 on an x86-64 machine and compares its bits with x86-64's, both
# over the libjpeg-turbo of the wheels: check_aarch64.sh [JPEG...]; by default the hostile ones.
# Then decodes ROUNDS (1000) damaged copies. Needs, on Debian:
#   apt-get install cmake nasm gcc gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
if [ $# -eq 0 ]; then
  set -- "$root"/tests/hostile/images/*/*.jpg
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

build() { # ARCHITECTURE COMPILER [CMAKE_ARGUMENT...]
  local prefix=$work/$1 compiler=$2
  shift 2
  "$root/deploy/build_libjpeg_turbo.sh" "$prefix" "$@" >"$prefix.log" 2>&1 ||
    { cat "$prefix.log" >&2; exit 1; }
  local program
  for program in bits/print_bits fuzz/damage_jpegs; do
    "$compiler" -std=gnu11 -Wall -Wextra -Werror -O3 -fno-math-errno -ffp-contract=off \
      -I "$root/streamloader/decode/native" -I "$prefix/include" \
      "$root/tests/decode/$program.c" "$root"/streamloader/decode/native/*.c \
      -L "$prefix/lib" -Wl,-rpath,"$prefix/lib" -ljpeg -lm -o "$prefix/${program##*/}"
  done
}

build x86_64 gcc
build aarch64 aarch64-linux-gnu-gcc -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
  -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc

as_aarch64() { qemu-aarch64 -L /usr/aarch64-linux-gnu "$@"; }
"$work/x86_64/print_bits" "$@" >"$work/x86_64.txt"
as_aarch64 "$work/aarch64/print_bits" "$@" >"$work/aarch64.txt"
diff "$work/x86_64.txt" "$work/aarch64.txt"
echo "$(wc -l <"$work/aarch64.txt") pictures, the same bits on x86-64 and aarch64"
as_aarch64 "$work/aarch64/damage_jpegs" "${ROUNDS:-1000}" 1 "$@"
