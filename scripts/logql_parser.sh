#!/usr/bin/env bash
# Installs Grafana's LogQL grammar, with which the tests of the dashboards parse queries, into the user's
# cache folder, and prints the folder. Quick if it is already installed. Needs Node 18 or newer with npm.
set -euo pipefail
source=$(cd "$(dirname "$0")/../tests/integration/dashboards/logql" && pwd)
lock=$(sha256sum "$source/package-lock.json" | cut -c1-12)
folder=${XDG_CACHE_HOME:-$HOME/.cache}/compilewatch/npm/logql-$lock

if [ ! -e "$folder/complete" ]; then
  mkdir -p "$folder"
  folder=$(cd "$folder" && pwd -P) # npm ci rejects a folder that is reached through a link
  cp "$source"/package*.json "$folder/"
  npm ci --prefix "$folder" --no-audit --no-fund --ignore-scripts --loglevel error >&2
  touch "$folder/complete"
fi
echo "$folder"
