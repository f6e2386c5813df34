#!/usr/bin/env bash
# Runs everything there is for a GPU and leaves at most 8 files in one folder. Needs the bundle and
# the tree (models, fixtures): no compiler, no network. Checks come before times.
#   gpu_test.sh [--out DIR] [--root DIR] [--steps NAMES] [--limit SECONDS] [--budget SECONDS]
#     --out    results; default results/h200, as on the card that the first of them are of
#     --root   the tree; default: the working folder
#     --steps  with commas; default all: engine,kernels,trace,models,sparse_models,reference23,v4,v32,streaming,peers,code,real,memcheck,racecheck
#     --limit  the most seconds a step may take; default 900
#     --budget the most seconds everything may take; default 5400. Steps that do not fit are named
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=results/h200
root=.
limit=900
budget=5400
steps=engine,kernels,trace,models,sparse_models,reference23,v4,v32,streaming,peers,code,real,memcheck,racecheck
while [ $# -gt 0 ]; do
  case "$1" in
    --out) out=$2; shift 2 ;;
    --root) root=$2; shift 2 ;;
    --steps) steps=$2; shift 2 ;;
    --limit) limit=$2; shift 2 ;;
    --budget) budget=$2; shift 2 ;;
    *) echo "gpu_test.sh: unknown argument '$1' (see its first lines)" >&2; exit 64 ;;
  esac
done
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
programs=$here/programs.tar.xz
if [ ! -f "$programs" ]; then
  echo "gpu_test.sh: no programs.tar.xz in $here; ./dev gpu-bundle makes it" >&2
  exit 66
fi
tar -xJf "$programs" -C "$work" 2>/dev/null ||  # without xz: Python has its own
  python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' "$programs" "$work" || {
  echo "gpu_test.sh: cannot unpack $programs: needs xz (package xz-utils) or python3" >&2
  exit 69
}
export LD_LIBRARY_PATH=$work${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
[ -x "$work/cuda_kernels_test" ] || steps=racecheck  # nothing else is in such a bundle
log=$out/gpu_test.log
failed=0
echo "commit $(cat "$here/commit"), $(date -u +%FT%TZ)" >"$log"

asked_for() { case ",$steps," in *",$1,"*) ;; *) return 1 ;; esac; }

step() {  # step NAME COMMAND...: its output goes to the log, its verdict to the terminal as well
  local name=$1
  shift
  asked_for "$name" || return 0
  local begin=$SECONDS
  local left=$((budget - SECONDS))
  if [ $left -lt 5 ]; then
    echo "$name: not run, no time left" | tee -a "$log"
    failed=1
    return 0
  fi
  [ $left -lt "$limit" ] || left=$limit
  printf '\n== %s: %s\n' "$name" "$*" >>"$log"
  timeout -k 5 "$left" "$@" 2>&1 | tee "$work/$name.log" >>"$log"
  local rc=${PIPESTATUS[0]}
  echo "$name: exit $rc after $((SECONDS - begin)) s: $(tail -n 1 "$work/$name.log" | cut -c1-200)" | tee -a "$log"
  [ $rc -eq 0 ] || failed=1
}

# Seconds for the rows of a step that writes them at its end, so that it ends before its limit; the
# longest row takes 20.
time_for_rows() {
  local left=$((budget - SECONDS))
  [ $left -lt "$limit" ] || left=$limit
  echo $((left > 60 ? left - 40 : 20))
}

# Decode of R1's first layers and of V2-Lite, random weights.
cat >"$work/models.sh" <<'S'
rc=0
for batch in 1 32 128; do
  "$1/fathom" bench model --as deepseek-r1-nvfp4 --layers 8 --dummy-weights --device cuda \
    -p 0 -n 32 -d 4096 -b $batch || rc=1
done
"$1/fathom" bench model --as deepseek-v2-lite --dummy-weights --device cuda -p 512 -n 64 || rc=1
exit $rc
S

# Steps of V4 and V3.2 in their released formats, first layers, random weights, and prompts of Flash.
cat >"$work/sparse_models.sh" <<'S'
rc=0
bench() { "$1/fathom" bench model --dummy-weights --device cuda "${@:2}" || rc=1; }
bench "$1" --as deepseek-v4-flash --layers 8 -p 0 -n 32 -d 4096 -b 1,8,32,128
bench "$1" --as deepseek-v4-flash --layers 8 -p 0 -n 32 -d 131072 -b 1,32
bench "$1" --as deepseek-v4-flash --layers 4 -p 0 -n 32 -d 1000000 -b 1
bench "$1" --as deepseek-v4-pro --layers 4 -p 0 -n 32 -d 4096 -b 1,32
bench "$1" --as deepseek-v3.2 --layers 6 -p 0 -n 32 -d 4096 -b 1,32,128
for prompt in 8192 32768 65536; do
  bench "$1" --as deepseek-v4-flash --layers 8 -p $prompt -n 1
done
exit $rc
S

# Which kernels of the machine code use the tensor cores' warpgroup instructions, and how wide they
# read memory.
cat >"$work/code.sh" <<'S'
set -o pipefail
command -v cuobjdump >/dev/null || { echo "no cuobjdump here"; exit 1; }
cuobjdump -sass "$1/cuda_kernels_test" | awk '
  /Function :/ { name = $3 }
  / HGMMA/ { hgmma[name]++; found = 1 } / QGMMA/ { qgmma[name]++ }
  /LDG\.E\.[A-Z.]*128|LDG\.E\.128/ { wide[name]++ } /LDGSTS[A-Z0-9.]*128/ { wide[name]++ }
  /UTMALDG|UBLKCP/ { tma[name]++ }
  END {
    for (n in hgmma) all[n]; for (n in qgmma) all[n]; for (n in wide) all[n]; for (n in tma) all[n]
    for (n in all) printf "HGMMA %d QGMMA %d 16-byte loads %d TMA %d %s\n", hgmma[n], qgmma[n], wide[n], tma[n], n
    if (!found) exit 1
  }' | (c++filt 2>/dev/null || cat) | sort -k10 | cut -c1-240
S

checker() {  # checker TOOL PROGRAM FLAGS...: over small shapes, without repeats
  local tool=$1 program=$2
  shift 2
  asked_for "$tool" || return 0
  command -v compute-sanitizer >/dev/null || { echo "no compute-sanitizer here, $tool not run" | tee -a "$log"; return 0; }
  step "$tool" compute-sanitizer --tool "$tool" --target-processes all --error-exitcode 1 \
    "$work/$program" "$@" --brief --jobs 16
}

# racecheck is slow, so cases are small ones; and it knows only the lane that arrives for a warp, so a
# bundle made with --racecheck has a program whose lanes all arrive.
race_checker() {
  asked_for racecheck || return 0
  local program=cuda_kernels_test
  if [ -x "$work/cuda_kernels_racecheck" ]; then
    program=cuda_kernels_racecheck
    echo "racecheck: of cuda_kernels_racecheck, where every lane arrives at barriers" | tee -a "$log"
  else
    echo "racecheck: of cuda_kernels_test, as this is no bundle of ./dev gpu-bundle --racecheck: hazards of lanes" \
      "for which another one arrives may be none" | tee -a "$log"
  fi
  checker racecheck "$program" --small
}

step engine "$work/engine_gpu_test" --root "$root"
step kernels "$work/cuda_kernels_test" --jobs 14
step trace "$work/fathom" trace "$root/models/tiny-v3-nvfp4" -p "Once upon a time" --gen 4 \
  --device cuda --out-dir "$work/trace"
step models bash "$work/models.sh" "$work"
step sparse_models bash "$work/sparse_models.sh" "$work"
step reference23 "$work/fathom" bench kernel --suite reference23 --device cuda --check \
  --min-time 0.01 --reps 5 --budget "$(time_for_rows)" --out-dir "$work/reference23"
mkdir -p "$work/reference23"
for suite in v4 v32; do
  step $suite "$work/fathom" bench kernel --suite $suite --backend cuda --check \
    --min-time 0.01 --reps 5 --budget "$(time_for_rows)" -o csv --out-file "$work/reference23/suite_$suite.csv"
done
step streaming "$work/fathom" bench kernel --suite streaming --device cuda --check \
  --min-time 0.02 --reps 10 -o csv --out-file "$work/streaming.csv"
step peers python3 "$here/gpu_peers.py" --out "$work/peers.csv" --tokens 1,128,2048
for file in all_kernels.csv benchmark_summary.md roofline.md roofline.svg peaks.json; do
  [ -f "$work/reference23/$file" ] && cp "$work/reference23/$file" "$out"
done
for file in streaming.csv peers.csv; do
  [ -f "$work/$file" ] && mv "$work/$file" "$work/reference23"
done
tar -czf "$out/kernels.tar.gz" -C "$work/reference23" .
step code bash "$work/code.sh" "$work"
[ -f "$work/code.log" ] && cp "$work/code.log" "$out/machine_code.txt"
step real "$work/cuda_kernels_test" --real  # 56 GiB of operands a process
checker memcheck cuda_kernels_test
race_checker
exit $failed
