#!/usr/bin/env bash
# Runs everything there is for a GPU: conformance of every CUDA kernel at small and at real shapes, the
# memory checker over small shapes where it is installed, times. Needs the bundle and nothing else: no
# compiler, no network. Writes at most 8 files.
#   gpu_test.sh [--out DIR] [--quick]     --quick: small shapes only
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=results
quick=no
while [ $# -gt 0 ]; do
  case "$1" in
    --out) out=$2; shift 2 ;;
    --quick) quick=yes; shift ;;
    *) echo "gpu_test.sh: unknown argument '$1'" >&2; exit 64 ;;
  esac
done
mkdir -p "$out"
failed=0

step() {  # step NAME COMMAND...
  local name=$1
  shift
  local begin=$SECONDS
  "$@" >"$out/$name.log" 2>&1
  local rc=$?
  echo "$name: exit $rc after $((SECONDS - begin)) s: $(tail -n 1 "$out/$name.log")"
  [ $rc -eq 0 ] || failed=1
}

step kernels "$here/cuda_kernels_test" --jobs 12
if [ "$quick" = no ]; then
  step real_shapes "$here/cuda_kernels_test" --real --jobs 4
  if command -v compute-sanitizer >/dev/null; then
    step memcheck compute-sanitizer --tool memcheck --target-processes all --error-exitcode 1 \
      "$here/cuda_kernels_test" --jobs 8 --brief
  fi
  step times "$here/cuda_kernels_test" --time --csv "$out/kernel_times.csv"
fi
cp "$here/commit" "$out/commit"
exit $failed
