#!/usr/bin/env bash
# Puts the headers of CUTLASS 4.2.0 into build/cutlass/include. They come from the Python package
# nvidia-cutlass 4.2.0.0 of the Python package index; nothing is installed. Only the kernels for
# Blackwell (FATHOM_CUDA_ARCHS with 100a) need them.
set -euo pipefail
cd "$(dirname "$0")/.."
version=4.2.0.0
to=build/cutlass
[ -f "$to/include/cutlass/cutlass.h" ] && { echo "fetch_cutlass: $to/include is there"; exit 0; }
command -v python3 >/dev/null || { echo "fetch_cutlass: python3 with pip is needed" >&2; exit 69; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m pip download --quiet --no-deps --dest "$work" "nvidia-cutlass==$version" || {
  echo "fetch_cutlass: pip could not download nvidia-cutlass $version" >&2
  exit 69
}
python3 - "$work" <<'PY'
import glob, sys, zipfile
for wheel in glob.glob(sys.argv[1] + "/*.whl"):
    zipfile.ZipFile(wheel).extractall(sys.argv[1] + "/files")
PY
found=$(find "$work/files" -path '*include/cutlass/cutlass.h' | head -n 1)
[ -n "$found" ] || { echo "fetch_cutlass: the package holds no include/cutlass/cutlass.h" >&2; exit 70; }
mkdir -p "$to"
cp -r "$(dirname "$(dirname "$found")")" "$to/include"
echo "fetch_cutlass: headers of CUTLASS 4.2.0 are in $to/include"
