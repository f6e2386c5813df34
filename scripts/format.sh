#!/usr/bin/env bash
# Formats every tracked or new C++ file in place.
set -euo pipefail
cd "$(dirname "$0")/.."
git ls-files -z --cached --others --exclude-standard -- '*.h' '*.cc' '*.cu' '*.cuh' | xargs -0 -r clang-format -i
