#!/usr/bin/env bash
# Drives `fathom serve` with what people point at it: the official clients of OpenAI and Anthropic, a
# strict reader of metrics, a fuzzer of the OpenAPI description, a browser. Packages come from the Python
# package index, pinned in requirements.txt, and lie below build/.
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=build/clients
if ! cmp -s tests/clients/requirements.txt "$venv/installed.txt"; then
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check -r tests/clients/requirements.txt
  cp tests/clients/requirements.txt "$venv/installed.txt"
fi
cd tests/clients
if [ $# -gt 0 ]; then
  exec "../../$venv/bin/python" -m unittest -v "$@"
fi
"../../$venv/bin/python" -m unittest discover -p '*_test.py'
