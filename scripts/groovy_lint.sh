#!/usr/bin/env bash
# Lints the Jenkinsfile, or the files that are named: scripts/groovy_lint.sh [--home]
#
# Installs npm-groovy-lint, pinned, into the user's cache folder once; it needs Node 20 and Java 17,
# and contains Groovy, which the harness of tests/jenkins runs on. --home only prints its folder.
# Without Node or Java it says how to install them and succeeds, unless CI is set.
set -euo pipefail
cd "$(dirname "$0")/.."
version=16.2.0
home=${XDG_CACHE_HOME:-$HOME/.cache}/compilewatch/npm-groovy-lint/$version

for tool in npm java; do
  if ! command -v "$tool" >/dev/null; then
    echo "groovy_lint: $tool is missing: apt-get install --no-install-recommends npm default-jre-headless" >&2
    [ -z "${CI:-}" ] || exit 1
    [ "${1:-}" != --home ] || exit 3
    exit 0
  fi
done
if [ ! -f "$home/installed" ]; then
  mkdir -p "$home"
  npm install --silent --no-save --no-audit --no-fund --prefix "$home" "npm-groovy-lint@$version" >&2
  touch "$home/installed"
fi
if [ "${1:-}" = --home ]; then
  echo "$home/node_modules/npm-groovy-lint"
  exit 0
fi
"$home/node_modules/.bin/npm-groovy-lint" --noserver --failon warning \
  --config stack/jenkins/groovylint.json "${@:-Jenkinsfile}"
