#!/usr/bin/env bash
# Rewrites docs/generated and what docs/tour.md shows from the program itself. Run by `./dev docs`.
# The pages below docs/generated depend on the program alone: the instruction set whose variants they
# show is given, not found.
set -euo pipefail
cd "$(dirname "$0")/.."
program=${1:-build/release/fathom}
mkdir -p docs/generated
"$program" bench kernel --catalogue --out-file docs/generated/kernel_catalogue.md
echo "docs: docs/generated/kernel_catalogue.md"
"$program" --help-all >docs/generated/flags.md
echo "docs: docs/generated/flags.md"
for preset in deepseek-r1-nvfp4 deepseek-v3.2 deepseek-v4-flash \
  deepseek-v4-pro; do
  "$program" trace --dry --as "$preset" --isa avx512 --source-links ../../.. --quiet \
    --out-dir "docs/generated/$preset" --force >/dev/null
  rm "docs/generated/$preset"/*.csv
  echo "docs: docs/generated/$preset"
done
scripts/record_tour.py "$program"
echo "docs: docs/tour.md"
