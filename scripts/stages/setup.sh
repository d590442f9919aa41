#!/usr/bin/env bash
# Stage "Set up": scripts/stages/setup.sh [agent]
#
# Prepares .venv; quick if nothing has changed. REVISION is the commit to run, so that every agent runs the
# same code. Without `agent`, on the agent where a build begins, the folder that the stages share is
# cleared; with it, the environments that ENVIRONMENTS and TARGETS name are created, which the stage Inputs
# does at the beginning, after it has checked the parameters.
. "$(dirname "$0")/common.sh"

if [ -n "${REVISION:-}" ] && [ "$(git rev-parse HEAD)" != "$REVISION" ]; then
  git checkout --quiet --detach "$REVISION"
fi
if [ "${1:-}" != agent ]; then
  mkdir -p "$build"
  (cd "$build" && rm -rf archive compare papers parts shards neuron* runs regressed ./*.problem)
  echo "$owner" >"$build/owner"
fi

# Each job and executor of an agent has a workspace of its own; by hand there is one checkout.
if [ -n "${BUILD_TAG:-}" ]; then
  export SHARED=${SHARED:-${XDG_CACHE_HOME:-$HOME/.cache}/compilewatch/shared}
fi
scripts/setup.sh

if [ "${1:-}" = agent ]; then create_environments; fi
