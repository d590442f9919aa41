#!/usr/bin/env bash
# Prepares .venv in the checkout: ./scripts/setup.sh [dev]
#
# TORCH_INDEX   an index with CPU builds of torch, searched before the usual one. The standard
#               Linux wheel brings gigabytes of CUDA libraries and needs no GPU;
#               TORCH_INDEX=https://download.pytorch.org/whl/cpu selects the small build.
# PYTHON        the interpreter to use (3.11 or newer). Without it, the fastest of all interpreters
#               of the first version found: Dynamo is Python code, and an interpreter built
#               without profile-guided optimisation traces a fifth slower.
# SHARED        a folder in which checkouts with the same locked requirements share one environment
#               of several gigabytes. The checkout's .venv then contains only the checkout. Shared
#               environments that no set-up has used for 30 days are removed.
#
# Quick if nothing has changed: a stamp contains the digest of the lock files and of the interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."
extra=${1:-}

# Prints how many microseconds a small benchmark takes; fails if no environment can be created.
usable='import sys, time, ensurepip, venv
sys.version_info < (3, 11) and sys.exit(1)
def work():
    began, made = time.perf_counter(), {}
    for i in range(60000):
        made[i % 999] = (str(i), [i])
    return time.perf_counter() - began
print(round(min(work() for _ in range(5)) * 1e6))'

# Fails for an interpreter in a folder of root alone, which the sandbox of `make papers` cannot read.
readable='import os, pathlib, sys
path = pathlib.Path(sys.executable).resolve()
sys.exit(os.geteuid() == 0 and any(part.stat().st_mode & 1 == 0 for part in path.parents))'

find_python() {
  local candidate
  if [ -n "${PYTHON:-}" ]; then
    if "$PYTHON" -c "$usable" >/dev/null 2>&1; then command -v "$PYTHON"; return; fi
    echo "setup: PYTHON=$PYTHON is not a Python 3.11 or newer with venv" >&2
    exit 2
  fi
  local check fastest
  for check in "$readable" ''; do
    for candidate in python3.11 python3.12 python3.13 python3; do
      fastest=$(type -ap "$candidate" | while read -r path; do
        if "$path" -c "$check" 2>/dev/null && time=$("$path" -c "$usable" 2>/dev/null); then
          echo "$time $path"
        fi
      done | sort -n | head -n 1 | cut -d' ' -f2-)
      if [ -n "$fastest" ]; then echo "$fastest"; return; fi
    done
  done
  echo "setup: no Python 3.11 or newer found; install one or set PYTHON=/path/to/python3" >&2
  exit 2
}

locks=(requirements/default.txt)
if [ "$extra" = dev ]; then locks+=(requirements/dev.txt); fi
stamp=".venv/.setup-${extra:-default}"
digest=$(cat "${locks[@]}" pyproject.toml scripts/setup.sh | sha256sum | cut -d' ' -f1)
pip=(-m pip install --quiet --disable-pip-version-check)

create() { # FOLDER: creates a virtual environment if there is none
  local python
  if [ -x "$1/bin/python" ]; then return; fi
  python=$(find_python)
  echo "setup: creating $1 with $("$python" --version)"
  "$python" -m venv "$1"
}

install_locked() { # PYTHON
  local torch_pin arguments=()
  torch_pin=$(grep '^torch==' requirements/default.txt)
  if ! "$1" -c "
import importlib.metadata as m, sys
sys.exit(m.version('torch').split('+')[0] != '${torch_pin#torch==}')" 2>/dev/null; then
    echo "setup: installing $torch_pin (this takes the longest, once)"
    if [ -z "${TORCH_INDEX:-}" ] && [ "$(uname -s)" = Linux ]; then
      echo "setup: the CUDA build, the usual one for deployment, takes 6 GB; the CPU build takes about 1.4 GB:"
      echo "setup: TORCH_INDEX=https://download.pytorch.org/whl/cpu make setup"
    fi
    "$1" "${pip[@]}" ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$torch_pin"
  fi
  echo "setup: installing the locked requirements"
  for lock in "${locks[@]}"; do arguments+=(-r "$lock"); done
  "$1" "${pip[@]}" "${arguments[@]}"
}

share() { # Makes .venv an environment that uses the packages of one in $SHARED, which it creates
  local made tool
  mkdir -p "$SHARED"
  made=$(cd "$SHARED" && pwd)/$({ cat "${locks[@]}" && echo "${TORCH_INDEX:-} ${PYTHON:-}"; } |
    sha256sum | cut -c-16)
  # One set-up at a time: an agent has several executors, and one may remove what another creates.
  # The file says who has the lock, for those who wait.
  exec 9>>"$SHARED/lock"
  if ! flock --nonblock 9; then
    echo "setup: waiting for the set-up of another build, which installs packages that both use:" \
      "$(tail -n 1 "$SHARED/lock")"
    flock 9
    echo "setup: the other set-up has ended; continuing"
  fi
  echo "${BUILD_TAG:-by hand in $PWD}, since $(date '+%F %T %Z')" >"$SHARED/lock"
  if [ ! -f "$made/complete" ] || ! "$made/bin/python" -c ''; then
    rm -rf "$made"
    create "$made"
    install_locked "$made/bin/python"
  fi
  touch "$made" "$made/complete"
  find "$SHARED" -mindepth 1 -maxdepth 1 -type d -mtime +30 -exec rm -rf {} +
  exec 9>&-
  if [ "$(readlink .venv/shared)" = "$made" ] && .venv/bin/python -c ''; then return; fi
  rm -rf .venv
  "$made/bin/python" -m venv --without-pip .venv
  # As if its packages were installed here: their .pth files apply, too.
  "$made/bin/python" -c 'import site, sys
print(f"import site; site.addsitedir({site.getsitepackages()[0]!r})")' \
    >"$(.venv/bin/python -c 'import site; print(site.getsitepackages()[0])')/shared.pth"
  for tool in "$made"/bin/*; do
    case ${tool##*/} in pip*) continue ;; esac
    if [ ! -e ".venv/bin/${tool##*/}" ]; then ln -s "$tool" .venv/bin/; fi
  done
  ln -s "$made" .venv/shared
}

if [ -n "${SHARED:-}" ]; then share; fi
if [ -x .venv/bin/compilewatch ] && [ "$(cat "$stamp" 2>/dev/null)" = "$digest" ]; then exit 0; fi
if [ -z "${SHARED:-}" ]; then
  # A killed pip leaves packages without metadata, on which every later installation fails.
  if [ -e .venv/.setup-running ]; then
    echo "setup: the last set-up was interrupted; starting again"
    rm -rf .venv
  fi
  create .venv
  touch .venv/.setup-running
  install_locked .venv/bin/python
  rm .venv/.setup-running
fi
# The locks have what the extras need, but Ray (of dev) and Streamlit, which has a separate environment.
.venv/bin/python "${pip[@]}" --no-deps --editable '.[all]'
echo "$digest" >"$stamp"
echo "setup: ready"
