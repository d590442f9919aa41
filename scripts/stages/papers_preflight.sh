#!/usr/bin/env bash
# Stage "Preflight" of the job papers: the model and the sandbox, before anything is paid.
. "$(dirname "$0")/common.sh"

selection=(--provider "${PROVIDER:-bedrock}")
if [ -n "${MODEL:-}" ]; then selection+=(--model "$MODEL"); fi
compilewatch papers preflight "${selection[@]}"
