#!/usr/bin/env bash
# Packs what a GPU machine without a compiler needs into one folder, out/gpu-bundle: stripped programs
# in an archive, and the script that runs them. Models and fixtures are those of the tree.
#   scripts/gpu_bundle.sh [--racecheck[=FILES]] [BUILD_DIR]
#     --racecheck  cuda_kernels_racecheck alone: cuda_kernels_test with FATHOM_RACECHECK=ON, which
#                  compiles all kernels a second time; or those alone whose files the regular
#                  expression FILES finds, for a check of these kernels
#     BUILD_DIR    a build with FATHOM_CUDA=ON; default build/cuda, or build/cuda-racecheck
set -euo pipefail
cd "$(dirname "$0")/.."
preset=cuda
build=
programs=(cuda_kernels_test engine_gpu_test fathom)
racecheck=ON
for argument in "$@"; do
  case "$argument" in
    --racecheck | --racecheck=*)
      preset=cuda-racecheck
      programs=(cuda_kernels_test)
      [ "$argument" = --racecheck ] || racecheck=${argument#*=}
      ;;
    -*) echo "gpu_bundle.sh: unknown argument '$argument' (see its first lines)" >&2; exit 64 ;;
    *) build=$argument ;;
  esac
done
bundle=out/gpu-bundle

if [ -z "$build" ]; then
  build=build/$preset
  options=()
  [ "$preset" = cuda ] || options=("-DFATHOM_RACECHECK=$racecheck")
  cmake --preset "$preset" "${options[@]}" >/dev/null
fi
cmake --build "$build" -j "$(nproc)" --target "${programs[@]}"
rm -rf "$bundle"
mkdir -p "$bundle/stripped"
for program in "${programs[@]}"; do
  strip -o "$bundle/stripped/$program" "$build/$program"
done
# The one shared library of the server that a machine may lack.
if [ -x "$build/fathom" ]; then
  ldd "$build/fathom" | awk '/libprometheus/ {print $3}' | xargs -r cp -L -t "$bundle/stripped"
fi
if [ "$preset" = cuda-racecheck ]; then
  mv "$bundle/stripped/cuda_kernels_test" "$bundle/stripped/cuda_kernels_racecheck"
fi
# The programs hold the same kernels: a window that spans them all stores those once.
tar -cf - -C "$bundle/stripped" . | xz -T1 --lzma2=preset=3,dict=128MiB >"$bundle/programs.tar.xz"
rm -rf "$bundle/stripped"
cp scripts/gpu_test.sh scripts/gpu_peers.py "$bundle"
git rev-parse HEAD >"$bundle/commit" 2>/dev/null || echo unknown >"$bundle/commit"
du -sh "$bundle"
