#!/usr/bin/env bash
# Builds libjpeg-turbo for the wheels: build_libjpeg_turbo.sh PREFIX [CMAKE_ARGUMENT...]. Needs
# cmake, a C compiler, curl, and nasm on x86-64.
#
# The source is the upstream archive as Debian distributes it; its sum is the one in Debian's signed
# index (apt-get source libjpeg-turbo). Debian drops a version when no suite has it any longer:
# LIBJPEG_TURBO_URL then names another place for the same archive.
set -euo pipefail

prefix=$1
shift
version=3.1.3
sha256=3a13a5ba767dc8264bc40b185e41368a80d5d5f945944d1dbaa4b2fb0099f4e5
url=${LIBJPEG_TURBO_URL:-https://deb.debian.org/debian/pool/main/libj/libjpeg-turbo/libjpeg-turbo_$version.orig.tar.gz}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if ! curl --fail --silent --show-error --location --retry 3 --output "$work/source.tar.gz" "$url"; then
  echo "$0: no libjpeg-turbo $version at $url; set LIBJPEG_TURBO_URL to another copy" >&2
  exit 1
fi
echo "$sha256  $work/source.tar.gz" | sha256sum --check --quiet
tar -xzf "$work/source.tar.gz" -C "$work"

# Without its SIMD the library decodes at a third of its speed: fail rather than ship that.
cmake -S "$work/libjpeg-turbo-$version" -B "$work/build" -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_INSTALL_PREFIX="$prefix" -DCMAKE_INSTALL_LIBDIR=lib \
  -DENABLE_STATIC=OFF -DWITH_TURBOJPEG=OFF -DREQUIRE_SIMD=ON "$@"
cmake --build "$work/build" --parallel --target install
