#!/usr/bin/env bash
# The services of compose.yaml as plain processes on the loopback address, for machines without
# Docker: scripts/stack.sh up | down | status | logs SERVICE
#
# Runs the installed services: Debian packages prometheus, prometheus-pushgateway and
# prometheus-alertmanager; loki, alloy and grafana if they are on PATH. Missing services are named with
# the consequences. The settings are those of .env.example, from .env or the environment.
#
# STACK_DATA   data, logs and process ids (default $XDG_STATE_HOME/compilewatch/stack)
#
# Exit status: 0 done; 1 a service did not start; 2 wrong use or a port is taken; 3 (status) a service is down.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)

# .env as Compose reads it; the environment takes precedence.
read_settings() {
  local key value
  [ -f "$root/.env" ] || return 0
  while IFS='=' read -r key value || [ -n "$key" ]; do
    if [[ $key =~ ^[A-Z][A-Z0-9_]*$ ]] && [ -z "${!key+set}" ]; then
      if [[ $value =~ ^\"(.*)\"$ || $value =~ ^\'(.*)\'$ ]]; then value=${BASH_REMATCH[1]}; fi
      export "$key=$value"
    fi
  done <"$root/.env"
}
read_settings

data=${STACK_DATA:-${XDG_STATE_HOME:-$HOME/.local/state}/compilewatch/stack}
services=(pushgateway alertmanager prometheus loki alloy grafana)

port_of() {
  case $1 in
    pushgateway) echo "${PUSHGATEWAY_PORT:-9091}" ;;
    alertmanager) echo "${ALERTMANAGER_PORT:-9093}" ;;
    prometheus) echo "${PROMETHEUS_PORT:-9090}" ;;
    loki) echo "${LOKI_PORT:-3100}" ;;
    alloy) echo "${ALLOY_PORT:-12345}" ;;
    grafana) echo "${GRAFANA_PORT:-3000}" ;;
  esac
}

variable_of() { echo "$1_PORT" | tr '[:lower:]' '[:upper:]'; }

ready_path_of() {
  case $1 in
    loki) echo /ready ;;
    grafana) echo /api/health ;;
    *) echo /-/ready ;;
  esac
}

# Debian's name first: its programs are called prometheus-….
program_of() { type -P "prometheus-$1" || type -P "$1"; }

without() {
  case $1 in
    pushgateway) echo "runs cannot push metrics (apt install prometheus-pushgateway)" ;;
    alertmanager) echo "alerts appear in Prometheus and are not sent (apt install prometheus-alertmanager)" ;;
    prometheus) echo "no history and no alerts (apt install prometheus)" ;;
    loki) echo "no log search; the lines stay in outputs/*/logs/" ;;
    alloy) echo "logs are not collected; Prometheus scrapes the Pushgateway itself" ;;
    grafana) echo "no dashboards; use Prometheus' own page" ;;
  esac
}

# Alloy can send data only if both are installed.
has_alloy() { program_of alloy && program_of loki && program_of prometheus; } >/dev/null

# The start time of this process, empty if there is none or only a zombie: a process id alone may by now
# belong to another process. Field 22 of /proc/PID/stat (proc(5)), counted after the name in parentheses.
birth_of() {
  local fields
  if [ -r "/proc/$1/stat" ]; then
    read -ra fields <<<"$(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null)"
    if [ "${fields[0]:-Z}" != Z ]; then echo "${fields[19]}"; fi
  elif [ ! -d /proc/self ]; then
    ps -o lstart= -p "$1" || true
  fi
}

# The process id of a service that `up` started and that still runs.
pid_of() {
  local pid birth
  read -r pid birth 2>/dev/null <"$data/$1.pid" || return 1
  [ -n "$birth" ] && [ "$(birth_of "$pid")" = "$birth" ] && echo "$pid"
}

listens() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

is_ready() {
  (
    exec 3<>"/dev/tcp/127.0.0.1/$(port_of "$1")" || exit 1
    printf 'GET %s HTTP/1.0\r\n\r\n' "$(ready_path_of "$1")" >&3
    IFS= read -r -t 5 line <&3 && [[ $line == *' 200 '* ]]
  ) 2>/dev/null
}

# A path as text for sed's replacement.
literal() { sed 's/[&|\]/\\&/g' <<<"$1"; }

# The services' names in the configuration of compose.yaml, and their addresses here.
addressed() {
  local outputs here
  here=$(literal "$root")
  outputs=$(cd "$root" && mkdir -p "${COMPILEWATCH_OUTPUT_DIR:-outputs}" &&
    cd "${COMPILEWATCH_OUTPUT_DIR:-outputs}" && pwd) || return
  outputs=$(literal "$outputs")
  sed -e "s|pushgateway:9091|127.0.0.1:$(port_of pushgateway)|g" \
    -e "s|alertmanager:9093|127.0.0.1:$(port_of alertmanager)|g" \
    -e "s|prometheus:9090|127.0.0.1:$(port_of prometheus)|g" \
    -e "s|loki:3100|127.0.0.1:$(port_of loki)|g" \
    -e "s|127.0.0.1:12345|127.0.0.1:$(port_of alloy)|g" \
    -e "s|/etc/prometheus/rules|$here/stack/prometheus/rules|" \
    -e "s|/data/outputs|$outputs|" \
    -e "s|\"0.0.0.0\"|\"127.0.0.1\"|; s|= 3500|= ${ALLOY_PUSH_PORT:-3500}|" \
    -e "s|= 3501|= ${ALLOY_GRPC_PORT:-3501}|" "$@"
}

# Whether this Prometheus takes its retention from the configuration; earlier ones have only flags.
retention_is_in_file() {
  local version
  version=$("$1" --version 2>&1 | sed -n 's/^prometheus, version \([0-9]*\)\.\([0-9]*\).*/\1 \2/p')
  [ -n "$version" ] && [ "$((${version% *} * 1000 + ${version#* }))" -ge 3013 ]
}

# Writes the service's configuration and sets `command`.
prepare() {
  local own=$data/$1 address # called where `set -e` has no effect, so each step that can fail is checked
  address=127.0.0.1:$(port_of "$1")
  mkdir -p "$own"
  command=("$(program_of "$1")")
  case $1 in
    pushgateway)
      command+=("--web.listen-address=$address" "--persistence.file=$own/metrics.store"
        --persistence.interval=1m)
      ;;
    alertmanager)
      (umask 077 && "$root/stack/alertmanager/render.sh" >"$own/alertmanager.yml") || return
      command+=("--config.file=$own/alertmanager.yml" "--storage.path=$own"
        "--web.listen-address=$address" --cluster.listen-address=
        "--web.external-url=${ALERTMANAGER_EXTERNAL_URL:-http://$address/}")
      ;;
    prometheus)
      local parts=("$own/rendered.yml") in_file=()
      command+=("--config.file=$own/prometheus.yml" "--storage.tsdb.path=$own/tsdb"
        --web.enable-remote-write-receiver "--web.listen-address=$address"
        "--web.external-url=${PROMETHEUS_EXTERNAL_URL:-http://$address/}")
      if retention_is_in_file "${command[0]}"; then
        in_file=(--retention)
      else
        command+=("--storage.tsdb.retention.time=${PROMETHEUS_RETENTION:-180d}"
          "--storage.tsdb.retention.size=${PROMETHEUS_RETENTION_SIZE:-8GB}")
      fi
      GRAFANA_EXTERNAL_URL=${GRAFANA_EXTERNAL_URL:-http://127.0.0.1:$(port_of grafana)/} \
        RUNBOOK_URL=${RUNBOOK_URL:-} "$root/stack/prometheus/render.sh" \
        ${in_file[@]+"${in_file[@]}"} >"$own/rendered.yml" || return
      if ! has_alloy; then parts+=("$root/stack/prometheus/scrape_pushgateway.yml"); fi
      addressed "${parts[@]}" >"$own/prometheus.yml" || return
      ;;
    loki)
      command=(env "LOKI_DATA=$own" "${command[@]}" "-config.file=$root/stack/loki/loki.yaml"
        -config.expand-env=true -server.http-listen-address=127.0.0.1
        "-server.http-listen-port=$(port_of loki)" -server.grpc-listen-address=127.0.0.1
        "-server.grpc-listen-port=${LOKI_GRPC_PORT:-9095}")
      ;;
    alloy)
      mkdir -p "$own/etc"
      addressed "$root/alloy/config.alloy" >"$own/etc/config.alloy"
      addressed "$root/alloy/sinks/local.alloy" >"$own/etc/sink.alloy"
      command+=(run "--server.http.listen-addr=$address" "--storage.path=$own/data"
        --disable-reporting "$own/etc")
      ;;
    grafana)
      mkdir -p "$own/plugins" # Grafana logs an error at each start without it
      if [ ! -s "$root/stack/secrets/grafana_admin_password" ]; then "$root/scripts/stack_setup.sh"; fi
      command=(env
        "GF_SECURITY_ADMIN_PASSWORD=\$__file{$root/stack/secrets/grafana_admin_password}"
        "GF_PATHS_DATA=$own" "GF_PATHS_LOGS=$own/log" GF_SERVER_HTTP_ADDR=127.0.0.1
        "GF_PATHS_PROVISIONING=$root/stack/grafana/provisioning"
        "GF_SERVER_HTTP_PORT=$(port_of grafana)" GF_ANALYTICS_REPORTING_ENABLED=false
        "GF_SERVER_ROOT_URL=${GRAFANA_EXTERNAL_URL:-http://$address/}"
        GF_ANALYTICS_CHECK_FOR_UPDATES=false GF_ANALYTICS_CHECK_FOR_PLUGIN_UPDATES=false
        GF_PLUGINS_PREINSTALL_DISABLED=true GF_PLUGINS_PUBLIC_KEY_RETRIEVAL_DISABLED=true
        GF_NEWS_NEWS_FEED_ENABLED=false GF_SECURITY_DISABLE_GRAVATAR=true
        GF_USERS_ALLOW_SIGN_UP=false "GF_PATHS_PLUGINS=$own/plugins"
        "PROMETHEUS_URL=http://127.0.0.1:$(port_of prometheus)"
        "LOKI_URL=http://127.0.0.1:$(port_of loki)"
        "ALERTMANAGER_URL=http://127.0.0.1:$(port_of alertmanager)"
        "DASHBOARDS_PATH=$root/dashboards/json"
        "GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH=$root/dashboards/json/compilewatch/compilewatch-overview.json"
        "${command[@]}" server --homepath "${GRAFANA_HOME:-/usr/share/grafana}")
      ;;
  esac
}

# Starts one service and waits until it responds; prints the end of its log if it does not.
start() {
  local pid log=$data/$1.log
  if ! prepare "$1"; then
    echo "stack: $1 has no valid configuration: see above" >&2
    return 1
  fi
  if [ -f "$log" ]; then mv "$log" "$log.1"; fi
  nohup "${command[@]}" >"$log" 2>&1 </dev/null 9>&- &
  pid=$!
  echo "$pid $(birth_of $pid)" >"$data/$1.pid"
  for _ in $(seq 600); do
    if ! pid_of "$1" >/dev/null; then
      echo "stack: $1 ended during its start: $(tail -n 1 "$log") ($log)" >&2
      rm -f "$data/$1.pid"
      return 1
    fi
    if is_ready "$1"; then
      echo "stack: $1 on http://127.0.0.1:$(port_of "$1")"
      return
    fi
    sleep 0.1
  done
  echo "stack: $1 does not respond after 60 seconds; its log is $log" >&2
  return 1
}

# Only processes that `up` started: the id in the file must still belong to the same process.
stop() {
  local pid tick
  if pid=$(pid_of "$1"); then
    kill "$pid" 2>/dev/null || true
    for tick in $(seq 200); do
      pid_of "$1" >/dev/null || break
      if [ "$tick" = 150 ]; then kill -9 "$pid" 2>/dev/null || true; fi
      sleep 0.1
    done
    echo "stack: $1 stopped"
  fi
  rm -f "$data/$1.pid"
}

up() {
  local service other wanted=() missing=() started=() taken=0
  for service in "${services[@]}"; do
    if pid_of "$service" >/dev/null; then
      echo "stack: $service already runs on http://127.0.0.1:$(port_of "$service")"
    elif ! program_of "$service" >/dev/null || { [ "$service" = alloy ] && ! has_alloy; }; then
      missing+=("$service")
    else
      wanted+=("$service")
      if listens "$(port_of "$service")"; then
        echo "stack: $service's port $(port_of "$service") is taken by another program:" \
          "end that, or set $(variable_of "$service")" >&2
        taken=1
      fi
    fi
  done
  if [ $taken = 1 ]; then exit 2; fi
  for service in ${wanted[@]+"${wanted[@]}"}; do
    started=("$service" ${started[@]+"${started[@]}"})
    if ! start "$service"; then
      for other in "${started[@]}"; do stop "$other"; done
      exit 1
    fi
  done
  for service in ${missing[@]+"${missing[@]}"}; do
    echo "stack: no $service: $(without "$service")"
  done
  if pid_of pushgateway >/dev/null; then
    echo "stack: runs publish to it with COMPILEWATCH_PUSHGATEWAY_URL=http://127.0.0.1:$(port_of pushgateway)"
  fi
}

down() {
  local last
  for ((last = ${#services[@]} - 1; last >= 0; last--)); do stop "${services[last]}"; done
}

status() {
  local service pid all=0
  for service in "${services[@]}"; do
    if pid=$(pid_of "$service"); then
      if is_ready "$service"; then
        echo "$service: http://127.0.0.1:$(port_of "$service"), process $pid"
      else
        echo "$service: process $pid does not respond; see scripts/stack.sh logs $service"
        all=3
      fi
    elif [ -f "$data/$service.pid" ]; then
      echo "$service: died; see scripts/stack.sh logs $service, start it with scripts/stack.sh up"
      all=3
    elif program_of "$service" >/dev/null; then
      echo "$service: stopped"
      if [ "$service" != alloy ] || has_alloy; then all=3; fi
    else
      echo "$service: not installed: $(without "$service")"
    fi
  done
  return $all
}

logs() {
  if [ ! -f "$data/${1:-}.log" ]; then
    echo "stack: no log of '${1:-}'; one of: ${services[*]}" >&2
    exit 2
  fi
  tail -n 100 "$data/$1.log"
}

mkdir -p "$data"
case ${1:-} in
  up | down)
    # Two at once would start everything twice. The lock ends with the process.
    exec 9>"$data/lock"
    if type -P flock >/dev/null && ! flock -w 60 9; then
      echo "stack: another scripts/stack.sh is running on $data" >&2
      exit 1
    fi
    "$1"
    ;;
  status) status ;;
  logs) logs "${2:-}" ;;
  *)
    echo "usage: scripts/stack.sh up | down | status | logs SERVICE" >&2
    exit 2
    ;;
esac
