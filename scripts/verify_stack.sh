#!/usr/bin/env bash
# Verifies the stack with its real services: scripts/verify_stack.sh [docker|programs]
#
# docker     the services of compose.yaml, in a project of its own
# programs   those on PATH, by scripts/stack.sh: prometheus, pushgateway, alertmanager, loki, alloy,
#            grafana; minio, where it is installed, for the sink s3
#
# Without an argument: Docker where an engine answers, else programs. It works on a copy of the
# stack's files, on free ports and in folders of its own: it brings the services up, sweeps three
# small models, publishes, checks, and takes everything down. About five minutes. A line for each
# check; what is not installed is named as not verified.
#
# Exit status: 0 all verified; 1 a check failed; 3 none failed, but something is not installed.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ ! -x .venv/bin/compilewatch ]; then scripts/setup.sh; fi
exec .venv/bin/python -m scripts.verify_stack "$@"
