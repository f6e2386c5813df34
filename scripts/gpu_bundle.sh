#!/usr/bin/env bash
# Packs what a GPU machine without a compiler needs into one folder, out/gpu-bundle: stripped programs
# and the script that runs them. Models and fixtures are those of the tree.
#   scripts/gpu_bundle.sh [BUILD_DIR]    BUILD_DIR: a build with FATHOM_CUDA=ON; default build/cuda
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/cuda}
bundle=out/gpu-bundle

if [ $# -eq 0 ]; then
  cmake --preset cuda >/dev/null
fi
cmake --build "$build" -j "$(nproc)" --target cuda_kernels_test fathom
rm -rf "$bundle"
mkdir -p "$bundle"
for program in cuda_kernels_test fathom; do
  strip -o "$bundle/$program" "$build/$program"
done
cp scripts/gpu_test.sh "$bundle/gpu_test.sh"
git rev-parse HEAD >"$bundle/commit" 2>/dev/null || echo unknown >"$bundle/commit"
du -sh "$bundle"
