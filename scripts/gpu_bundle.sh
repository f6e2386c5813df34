#!/usr/bin/env bash
# Packs what a GPU machine without a compiler needs into one folder, out/gpu-bundle: stripped programs
# in an archive, and the script that runs them. Models and fixtures are those of the tree.
#   scripts/gpu_bundle.sh [--racecheck] [BUILD_DIR]
#     --racecheck  also cuda_kernels_racecheck: cuda_kernels_test with FATHOM_RACECHECK=ON, from
#                  build/cuda-racecheck, which compiles all kernels a second time
#     BUILD_DIR    a build with FATHOM_CUDA=ON; default build/cuda
set -euo pipefail
cd "$(dirname "$0")/.."
racecheck=
build=
for argument in "$@"; do
  case "$argument" in
    --racecheck) racecheck=build/cuda-racecheck ;;
    -*) echo "gpu_bundle.sh: unknown argument '$argument' (see its first lines)" >&2; exit 64 ;;
    *) build=$argument ;;
  esac
done
bundle=out/gpu-bundle
programs=(cuda_kernels_test engine_gpu_test fathom)

if [ -z "$build" ]; then
  build=build/cuda
  cmake --preset cuda >/dev/null
fi
cmake --build "$build" -j "$(nproc)" --target "${programs[@]}"
if [ -n "$racecheck" ]; then
  cmake --preset cuda-racecheck >/dev/null
  cmake --build "$racecheck" -j "$(nproc)" --target cuda_kernels_test
fi
rm -rf "$bundle"
mkdir -p "$bundle/stripped"
for program in "${programs[@]}"; do
  strip -o "$bundle/stripped/$program" "$build/$program"
done
if [ -n "$racecheck" ]; then
  strip -o "$bundle/stripped/cuda_kernels_racecheck" "$racecheck/cuda_kernels_test"
  programs+=(cuda_kernels_racecheck)
fi
tar -czf "$bundle/programs.tar.gz" -C "$bundle/stripped" "${programs[@]}"
rm -rf "$bundle/stripped"
cp scripts/gpu_test.sh scripts/gpu_peers.py "$bundle"
git rev-parse HEAD >"$bundle/commit" 2>/dev/null || echo unknown >"$bundle/commit"
du -sh "$bundle"
