#!/usr/bin/env bash
# Once before `docker compose up -d`: scripts/stack_setup.sh [local|cloud]
#
# local   Prometheus, Loki and Grafana run here (the default)
# cloud   Grafana Cloud runs them; creates alloy/env.secrets to be filled in
#
# Creates and prints, once, the passwords of Grafana and Jenkins if they run here. With Jenkins, it gives
# the agent's user write access to outputs/, or prints the command that does and ends with status 1.
# Writes .env from .env.example. When run again, it changes only the requested setting: passwords, keys
# and other settings stay unchanged.
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

# Whether the user 1000 of the agent's container may write to PATH: by owner, group, others or a list.
agent_writes() {
  [ -n "$(find "$1" -maxdepth 0 \
    \( -uid 1000 -perm -u=w -o -gid 1000 -perm -g=w -o -perm -o=w \))" ] ||
    getfacl --numeric --omit-header "$1" 2>/dev/null | grep -q '^user:1000:.w'
}

# The runs are in a folder of the host, which belongs to the user who created the checkout.
open_outputs() {
  local outputs
  outputs=${COMPILEWATCH_OUTPUT_DIR:-$(sed -n 's/^COMPILEWATCH_OUTPUT_DIR=//p' .env)}
  outputs=${outputs:-$PWD/outputs}
  mkdir -p "$outputs"
  if agent_writes "$outputs"; then return; fi
  # Root can still write there afterwards, any other owner could not.
  if [ "$(id -u)" = 0 ] && [ -O "$outputs" ]; then
    chown 1000:1000 "$outputs"
    return
  fi
  echo "stack_setup: the Jenkins agent (user 1000) cannot write to $outputs: run" \
    "\`sudo setfacl -R -m u:1000:rwX,d:u:1000:rwX $outputs\`, or set COMPILEWATCH_OUTPUT_DIR" \
    "in .env to a folder that belongs to it, or take jenkins out of COMPOSE_PROFILES" >&2
  exit 1
}

kind=${1:-}
case $kind in
  '' | local | cloud) ;;
  *)
    echo "stack_setup: $kind is neither local nor cloud" >&2
    exit 2
    ;;
esac

# The address of docs/alerts.md on the site that this checkout was cloned from, for links in alerts.
runbook_url() {
  local origin
  origin=$(git remote get-url origin 2>/dev/null) || return 0
  sed -nE -e 's|^git@([^:]+):|https://\1/|' -e 's|^(https://)[^/@]*@|\1|' -e 's|(\.git)?/?$||' \
    -e 's|^https://.*|&/blob/HEAD/docs/alerts.md|p' <<<"$origin"
}

if [ ! -f .env ]; then
  cp .env.example .env
  kind=${kind:-local}
fi
if [ -n "$kind" ]; then
  # Other profiles are kept.
  profiles=$(sed -n 's/^COMPOSE_PROFILES=//p' .env | tr ',' '\n' | grep -vx local | paste -sd, - || true)
  if [ "$kind" = local ]; then profiles=local${profiles:+,$profiles}; fi
  set_line COMPOSE_PROFILES "$profiles"
  set_line ALLOY_SINK "$kind"
fi

if ! grep -q '^RUNBOOK_URL=' .env; then
  runbook=$(runbook_url)
  if [ -n "$runbook" ]; then set_line RUNBOOK_URL "$runbook"; fi
fi

# Docker Desktop gives every container's user the rights of the owner.
if grep -q '^COMPOSE_PROFILES=.*jenkins' .env && [ "$(uname -s)" = Linux ]; then open_outputs; fi

if grep -q '^ALLOY_SINK=cloud' .env; then
  if [ ! -f alloy/env.secrets ]; then
    cp alloy/env.secrets.example alloy/env.secrets
    echo "stack_setup: fill in alloy/env.secrets with the values that Grafana Cloud shows for your stack"
  fi
else
  secret=stack/secrets/grafana_admin_password
  mkdir -p stack/secrets
  # A file cut off by a crash is not a password: write beside it, then rename.
  if [ ! -s "$secret" ]; then
    (set +o pipefail && LC_ALL=C tr -dc 'A-Za-z0-9' </dev/urandom | head -c 24) >"$secret.new"
    # Compose mounts the file unchanged, and Grafana runs as another user; the folder's mode protects it.
    chmod 644 "$secret.new"
    mv "$secret.new" "$secret"
    echo "stack_setup: Grafana's user is admin, the password $(cat "$secret") (stored in $secret)"
  fi
fi
if grep -q '^COMPOSE_PROFILES=.*jenkins' .env; then
  made=$([ -s stack/secrets/jenkins_admin_password ] || echo yes)
  stack/jenkins/secrets.sh
  if [ -n "$made" ]; then
    password=$(cat stack/secrets/jenkins_admin_password)
    echo "stack_setup: Jenkins' user is admin, the password $password (stored in stack/secrets/)"
  fi
fi
echo "stack_setup: ready; docker compose up -d, or scripts/stack.sh up without Docker"
