#!/usr/bin/env bash
# Packs what a GPU machine without a compiler needs into one folder, out/gpu-bundle: stripped programs
# in an archive, and the script that runs them. Models and fixtures are those of the tree.
#   scripts/gpu_bundle.sh [BUILD_DIR]    BUILD_DIR: a build with FATHOM_CUDA=ON; default build/cuda
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/cuda}
bundle=out/gpu-bundle
programs=(cuda_kernels_test engine_gpu_test fathom)

if [ $# -eq 0 ]; then
  cmake --preset cuda >/dev/null
fi
cmake --build "$build" -j "$(nproc)" --target "${programs[@]}"
rm -rf "$bundle"
mkdir -p "$bundle/stripped"
for program in "${programs[@]}"; do
  strip -o "$bundle/stripped/$program" "$build/$program"
done
tar -czf "$bundle/programs.tar.gz" -C "$bundle/stripped" "${programs[@]}"
rm -rf "$bundle/stripped"
cp scripts/gpu_test.sh scripts/gpu_peers.py "$bundle"
git rev-parse HEAD >"$bundle/commit" 2>/dev/null || echo unknown >"$bundle/commit"
du -sh "$bundle"
