#!/usr/bin/env bash
# Verifies the stack with its real services: scripts/verify_stack.sh [docker|programs]
#
# docker     the services of compose.yaml, in a separate project
# programs   the programs on PATH, started by scripts/stack.sh: prometheus, pushgateway, alertmanager, loki, alloy,
#            grafana; minio, if it is installed, for the sink s3
#
# Without an argument: Docker if its engine responds, else programs. The script uses a copy of the
# stack's files, free ports and its own folders: it starts the services, sweeps four small models and a team's list,
# publishes, checks, and stops everything. This takes about five minutes. It prints a line for each
# check; services that are not installed are named as not verified.
#
# Exit status: 0 all verified; 1 a check failed; 3 none failed, but something is not installed.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ ! -x .venv/bin/compilewatch ]; then scripts/setup.sh; fi
exec .venv/bin/python -m scripts.verify_stack "$@"
