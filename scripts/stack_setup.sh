#!/usr/bin/env bash
# Once before `docker compose up -d`: scripts/stack_setup.sh [local|cloud]
#
# local   Prometheus, Loki and Grafana run here (the default)
# cloud   Grafana Cloud has them; alloy/env.secrets is there to be filled in
#
# The passwords of Grafana and Jenkins, as far as they run here, are made and printed once.
# Writes .env from .env.example. Run again, it changes only what was asked for: a password, keys and
# other settings stay as they are.
set -euo pipefail
cd "$(dirname "$0")/.."
umask 077

set_line() { # KEY VALUE: in .env
  if grep -q "^$1=" .env; then
    sed "s|^$1=.*|$1=$2|" .env >.env.new && mv .env.new .env
  else
    echo "$1=$2" >>.env
  fi
}

kind=${1:-}
case $kind in
  '' | local | cloud) ;;
  *)
    echo "stack_setup: $kind is neither local nor cloud" >&2
    exit 2
    ;;
esac

if [ ! -f .env ]; then
  cp .env.example .env
  kind=${kind:-local}
fi
if [ -n "$kind" ]; then
  # Other profiles stay.
  profiles=$(sed -n 's/^COMPOSE_PROFILES=//p' .env | tr ',' '\n' | grep -vx local | paste -sd, - || true)
  if [ "$kind" = local ]; then profiles=local${profiles:+,$profiles}; fi
  set_line COMPOSE_PROFILES "$profiles"
  set_line ALLOY_SINK "$kind"
fi

if grep -q '^ALLOY_SINK=cloud' .env; then
  if [ ! -f alloy/env.secrets ]; then
    cp alloy/env.secrets.example alloy/env.secrets
    echo "stack_setup: fill in alloy/env.secrets with what Grafana Cloud names for your stack"
  fi
else
  secret=stack/secrets/grafana_admin_password
  mkdir -p stack/secrets
  # A file cut short by a crash is no password: written beside it, then renamed.
  if [ ! -s "$secret" ]; then
    (set +o pipefail && LC_ALL=C tr -dc 'A-Za-z0-9' </dev/urandom | head -c 24) >"$secret.new"
    # Compose mounts the file as it is, and Grafana has another user; the folder keeps others out.
    chmod 644 "$secret.new"
    mv "$secret.new" "$secret"
    echo "stack_setup: Grafana's user is admin, the password $(cat "$secret") (kept in $secret)"
  fi
fi
if grep -q '^COMPOSE_PROFILES=.*jenkins' .env; then
  made=$([ -s stack/secrets/jenkins_admin_password ] || echo yes)
  stack/jenkins/secrets.sh
  if [ -n "$made" ]; then
    password=$(cat stack/secrets/jenkins_admin_password)
    echo "stack_setup: Jenkins' user is admin, the password $password (kept in stack/secrets/)"
  fi
fi
echo "stack_setup: ready; docker compose up -d, or scripts/stack.sh up without Docker"
