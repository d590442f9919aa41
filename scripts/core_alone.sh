#!/usr/bin/env bash
# What works without extras: a copy of the tree without their folders passes the tests of the core and
# a sweep. `scripts/core_alone.sh NAME` leaves out one extra only, with those that need it.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
name=${1:-}

copy=$(mktemp -d "${TMPDIR:-/tmp}/compilewatch-alone.XXXXXX")
trap 'rm -rf "$copy"' EXIT
git ls-files -z | tar --null -T - -cf - | tar -xf - -C "$copy"
cd "$copy"
case $name in  # an extra that another needs goes with it
  executor) names=(executor papers) ;;
  profiles) names=(profiles monitor) ;;
  fixes) names=(fixes gate) ;;
  *) names=("${name:-*}") ;;
esac
for folder in $(printf 'src/compilewatch/extras/%s/ ' "${names[@]}"); do
  extra=$(basename "$folder")
  rm -rf "$folder" "tests/unit/extras/$extra" "tests/integration/extras/$extra"
  # Its public name goes with it.
  if [ "$extra" = profiles ]; then rm src/compilewatch/profiling.py; fi
done
left_out=$([ -n "$name" ] && echo "${names[*]}" || echo 'all extras')

# The copy uses the environment of the checkout, with its own sources first.
export PYTHONPATH=$copy/src:$copy PYTHONDONTWRITEBYTECODE=1
python=$root/.venv/bin/python
# The gate's plug-in is an entry point of the environment, and dashboards show every extra.
options=(-p no:compilewatch -q -n "${WORKERS:-2}" --dist loadfile)
ignored=(tests/unit/dashboards tests/integration/dashboards tests/unit/test_documents.py tests/unit/test_mutants.py)
echo "core_alone: without $left_out"
"$python" -m pytest "${options[@]}" "${ignored[@]/#/--ignore=}" tests/unit "${@:2}"
"$python" -m compilewatch sweep --top 3 --depth reduced --output "$copy/outputs" --fresh
