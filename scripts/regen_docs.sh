#!/usr/bin/env bash
# Rewrites docs/generated from the program itself. Run by `./dev docs`.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p docs/generated
build/release/fathom bench kernel --catalogue --out-file docs/generated/kernel_catalogue.md
echo "docs: docs/generated/kernel_catalogue.md"
