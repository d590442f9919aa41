#!/usr/bin/env bash
# Rewrites requirements/*.txt from requirements/*.in with the newest versions that fit.
#
# torch and transformers move together, to the newest pair that works: the newest torch first, with
# the newest transformers that fits, is installed as the environment `lock-trial` (in the user's
# cache folder, 6 GB with the CUDA build, removed afterwards) and has to produce a verdict for each of
# the 25 most used architectures. If a torch fails, the next older one is tried, down to the pinned one.
#
#   TORCH=2.14.1           try only this version
#
# The local version of a build ("+cu132") is removed, so that the lock fits every machine, and so are the
# CUDA libraries: pip resolves those of the torch that it installs.
# neuron*.txt are neuron*.in without comments: AWS's index resolves the versions at installation.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=$(mktemp -d)
cache=${COMPILEWATCH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/compilewatch}
trap 'rm -rf "$tools" "$cache/environments/lock-trial"' EXIT
.venv/bin/python -m venv "$tools/venv"
"$tools/venv/bin/pip" install --quiet pip-tools
cp -r requirements "$tools/"

restore() { cp "$tools"/requirements/* requirements/; }

pinned() { sed -n "s/^$1==//p" requirements/default.txt; }

compile() { # torch version
  sed -i "s/^torch==.*/torch==$1/; s/^transformers==.*/transformers/" requirements/default.in
  for name in default dev docs libraries lowering monitor vision worker xla; do
    "$tools/venv/bin/pip-compile" --quiet --upgrade --strip-extras --no-header --no-annotate \
      --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-emit-options \
      --output-file "requirements/$name.txt" "requirements/$name.in" || return
    sed -i -E -e 's/^(torch==[^+ ]+)\+[a-z0-9.]+/\1/' -e '/^#/d' -e '/^$/d' -e '/^--/d' \
      -e '/^(nvidia-|cuda-|triton==)/d' "requirements/$name.txt"
  done
  for name in neuron neuron-xla; do sed -e "/^#/d" "requirements/$name.in" >"requirements/$name.txt"; done
  sed -i "s/^transformers$/transformers==$(pinned transformers)/" requirements/default.in
}

# Every model of a small sweep gets a verdict. Which verdict does not matter: it may change.
works() { # torch version
  .venv/bin/compilewatch env create lock-trial --torch "$1" &&
    .venv/bin/compilewatch sweep --environments lock-trial --output "$tools/outputs" --json \
      --fresh >"$tools/swept.json" &&
    .venv/bin/python - "$tools/swept.json" <<'PYTHON'
import json, sys
with open(sys.argv[1]) as file:
    swept = json.load(file)
statuses, planned = swept["summary"]["statuses"], swept["run"]["planned"]
print(f"lock: {planned} models: {statuses}", file=sys.stderr)
sys.exit(sum(statuses.get(s, 0) for s in ("pass", "graph_break", "mismatch")) != planned)
PYTHON
}

candidates() {
  .venv/bin/python - "$(pinned torch)" <<'PYTHON'
import subprocess, sys
from packaging.version import Version
command = [sys.executable, "-m", "pip", "index", "versions", "torch"]
told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
line = next(line for line in told.splitlines() if line.startswith("Available versions: "))
versions = sorted(map(Version, line.partition(": ")[2].split(", ")), reverse=True)
print(*(v for v in versions if v >= Version(sys.argv[1]) and not v.local), sep="\n")
PYTHON
}

for torch in ${TORCH:-$(candidates)}; do
  echo "lock: trying torch $torch"
  if compile "$torch" && works "$torch"; then
    # What is reviewed by name is compared with the new Transformers; lines that it lacks are printed.
    PYTHONPATH=.:src "$cache/environments/lock-trial/venv/bin/python" -m scripts.check_inputs --write ||
      echo "lock: correct these lines, then: python -m scripts.check_inputs --write"
    echo "lock: torch $torch and transformers $(pinned transformers) work; now: make setup test"
    exit 0
  fi
  echo "lock: torch $torch does not work with transformers $(pinned transformers)" >&2
  restore
done
echo "lock: no version of torch was found to work; requirements/ is unchanged" >&2
exit 1
