#!/usr/bin/env bash
# Prepares .venv in the checkout: ./scripts/setup.sh [dev]
#
# TORCH_INDEX   an index that carries CPU builds of torch, asked before the usual one.
#               The plain Linux wheel brings gigabytes of CUDA libraries; with
#               TORCH_INDEX=https://download.pytorch.org/whl/cpu it is about 200 MB.
# PYTHON        the interpreter to use (3.11 or newer).
#
# Quick when nothing changed: a stamp holds the digest of the lock files and of the interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."
extra=${1:-}

find_python() {
  local candidate
  for candidate in ${PYTHON:-} python3.11 python3.12 python3.13 python3; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  echo "setup: no Python 3.11 or newer found; install one or set PYTHON=/path/to/python3" >&2
  exit 2
}

locks=(requirements/default.txt)
if [ "$extra" = dev ]; then locks+=(requirements/dev.txt); fi
stamp=".venv/.setup-${extra:-default}"
digest=$(cat "${locks[@]}" pyproject.toml scripts/setup.sh | sha256sum | cut -d' ' -f1)
if [ -x .venv/bin/compilewatch ] && [ "$(cat "$stamp" 2>/dev/null)" = "$digest" ]; then exit 0; fi

if [ ! -x .venv/bin/python ]; then
  python=$(find_python)
  echo "setup: creating .venv with $("$python" --version)"
  "$python" -m venv .venv
fi
pip=(.venv/bin/python -m pip install --quiet --disable-pip-version-check)
torch_pin=$(grep '^torch==' requirements/default.txt)
if ! .venv/bin/python -c "
import importlib.metadata as m, sys
sys.exit(m.version('torch').split('+')[0] != '${torch_pin#torch==}')" 2>/dev/null; then
  echo "setup: installing $torch_pin (the long part, once)"
  if [ -z "${TORCH_INDEX:-}" ] && [ "$(uname -s)" = Linux ]; then
    echo "setup: without a GPU, TORCH_INDEX=https://download.pytorch.org/whl/cpu saves gigabytes"
  fi
  "${pip[@]}" ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$torch_pin"
fi
echo "setup: installing the locked requirements"
arguments=()
for lock in "${locks[@]}"; do arguments+=(-r "$lock"); done
"${pip[@]}" "${arguments[@]}"
"${pip[@]}" --no-deps --editable .
echo "$digest" >"$stamp"
echo "setup: ready"
