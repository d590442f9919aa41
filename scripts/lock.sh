#!/usr/bin/env bash
# Rewrites requirements/*.txt from requirements/*.in with the newest versions that fit.
# The local version of a CPU build ("+cpu") is dropped, so that the lock serves every machine, and
# so are the CUDA libraries of a build that has them: pip finds what the torch it gets needs.
# neuron.txt only drops the comments of neuron.in: the index of AWS is asked when it is installed.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
.venv/bin/python -m venv "$tools/venv"
"$tools/venv/bin/pip" install --quiet pip-tools
for name in default dev worker xla; do
  "$tools/venv/bin/pip-compile" --quiet --strip-extras --no-header --no-annotate \
    --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-emit-options \
    --output-file "requirements/$name.txt" "requirements/$name.in"
  sed -i -e 's/+cpu$//' -e '/^#/d' -e '/^$/d' -e '/^--/d' -e '/^nvidia-/d' -e '/^triton==/d' \
    "requirements/$name.txt"
done
sed -e '/^#/d' requirements/neuron.in >requirements/neuron.txt
