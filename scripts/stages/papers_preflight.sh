#!/usr/bin/env bash
# Stage "Preflight" of the job papers: the model and the sandbox, before anything is paid.
#
# What it finds is also in $PIPELINE_DIR/papers/preflight.txt, for the archive.
. "$(dirname "$0")/common.sh"

selection=(--provider "${PROVIDER:-bedrock}")
if [ -n "${MODEL:-}" ]; then selection+=(--model "$MODEL"); fi
mkdir -p "$build/papers"
compilewatch papers preflight "${selection[@]}" 2>&1 | tee "$build/papers/preflight.txt"
