#!/usr/bin/env bash
# Stage "Set up": scripts/stages/setup.sh [agent]
#
# Prepares .venv and the environments that ENVIRONMENTS and TARGETS name; quick if nothing has changed.
# REVISION is the commit to run, so that every agent runs the same code. With `agent`, the folder
# that the stages share is not cleared: this happens once per build, on the agent where it begins.
. "$(dirname "$0")/common.sh"

if [ -n "${REVISION:-}" ] && [ "$(git rev-parse HEAD)" != "$REVISION" ]; then
  git checkout --quiet --detach "$REVISION"
fi
if [ "${1:-}" != agent ]; then
  mkdir -p "$build"
  (cd "$build" && rm -rf archive compare parts shards neuron.tar.gz runs regressed)
  echo "$owner" >"$build/owner"
fi

# Each job and executor of an agent has a workspace of its own; by hand there is one checkout.
if [ -n "${BUILD_TAG:-}" ]; then
  export SHARED=${SHARED:-${XDG_CACHE_HOME:-$HOME/.cache}/compilewatch/shared}
fi
scripts/setup.sh

IFS=, read -ra names <<<"${ENVIRONMENTS:-}"
IFS=, read -ra targets <<<"${TARGETS:-}"
for target in "${targets[@]}"; do
  case $target in xla* | all) names+=(xla) ;; esac
done
for name in "${names[@]}"; do
  case $name in
  default) ;;
  torch-*) compilewatch env create "$name" --torch "${name#torch-}" ;;
  xla | neuron) compilewatch env create "$name" ;;
  *) compilewatch env check "$name" ;;
  esac
done
