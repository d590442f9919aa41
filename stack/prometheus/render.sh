#!/bin/sh
# Prints Prometheus' configuration: prometheus.yml with the settings from the environment, which
# Prometheus itself does not read everywhere. Runs in the image's busybox, too.
#
# --retention           also insert PROMETHEUS_RETENTION and PROMETHEUS_RETENTION_SIZE: for Prometheus
#                       from 3.13 on, where the flags of that name are deprecated
# GRAFANA_EXTERNAL_URL  the address at which readers of an alert reach Grafana
# RUNBOOK_URL           the address of docs/alerts.md, on a site or in the repository's web page
set -eu
folder=$(dirname "$0")

# Text for sed's replacement, inside single quotes of YAML, in which only the quote is special.
literal() { printf %s "$1" | sed "s/[&|\\\\]/\\\\&/g; s/'/''/g"; }

set -- "${1:-}" "$(literal "${GRAFANA_EXTERNAL_URL:-}")" "$(literal "${RUNBOOK_URL:-}")"
retention=
if [ "$1" = --retention ]; then
  retention="    retention:\\n      time: ${PROMETHEUS_RETENTION:-180d}\\n      size: ${PROMETHEUS_RETENTION_SIZE:-8GB}"
fi
sed -e "s|^    grafana_url: .*|    grafana_url: '${2%/}'|" \
  -e "s|^    runbook_url: .*|    runbook_url: '$3'|" \
  ${retention:+-e "s|^    out_of_order_time_window: .*|&\\n$retention|"} \
  "$folder/prometheus.yml"
