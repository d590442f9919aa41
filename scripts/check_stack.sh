#!/usr/bin/env bash
# Checks the stack's files with the services' own checkers: part of `make quality`. A checker that is
# not installed is named and skipped; in CI this is an error.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=.venv/bin

# Whether PROGRAM is installed; ADVICE says how to install it.
have() { # PROGRAM ADVICE
  if type -P "$1" >/dev/null; then return; fi
  echo "check_stack: $1 is missing, its checks are skipped: $2" >&2
  if [ -n "${CI:-}" ]; then exit 1; fi
  return 1
}

"$bin/docker-compose" --env-file .env.example --profile '*' config --quiet
COMPOSE_PROFILES='' ALLOY_SINK=cloud "$bin/docker-compose" --env-file /dev/null config --quiet
"$bin/check-jsonschema" --builtin-schema vendor.compose-spec compose.yaml
if [ -f Dockerfile ]; then "$bin/hadolint" Dockerfile; fi

if have promtool 'apt-get install --no-install-recommends prometheus'; then
  promtool check config --syntax-only stack/prometheus/prometheus.yml
  promtool check rules stack/prometheus/rules/*.yml
  promtool test rules tests/integration/stack/rules/*_test.yml
fi
if have amtool 'apt-get install --no-install-recommends prometheus-alertmanager'; then
  amtool check-config stack/alertmanager/alertmanager.yml
fi
if type -P alloy >/dev/null; then # no package contains it, so there is no advice to install it
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  for sink in alloy/sinks/*.alloy; do
    alloy fmt --test "$sink"
    cp alloy/config.alloy "$scratch/config.alloy"
    cp "$sink" "$scratch/sink.alloy"
    alloy validate "$scratch"
  done
  alloy fmt --test alloy/config.alloy
fi
for script in scripts/*.sh; do bash -n "$script"; done
sh -n stack/alertmanager/render.sh
sh -n stack/prometheus/render.sh
