#!/usr/bin/env bash
# Stage "Run" of the job papers: papers through every stage, into $COMPILEWATCH_OUTPUT_DIR/papers.
#
# QUERY or RECENT_DAYS select papers; MAX_PAPERS, MAX_USD, MAX_TOKENS and MAX_DEVICE_SECONDS limit
# them; PROVIDER and MODEL name the language model; JOBS is how many papers are processed at a time,
# TARGETS what they are compiled for. TRAINIUM=true: the instance runs for the trainings. The status is 1 if something is wrong with a paper's code, 3 if a stage was not run.
. "$(dirname "$0")/common.sh"

selection=(--max-papers "${MAX_PAPERS:-5}" --provider "${PROVIDER:-bedrock}")
if [ -n "${QUERY:-}" ]; then selection+=(--query "$QUERY"); else
  selection+=(--recent-days "${RECENT_DAYS:-1}")
fi
if [ -n "${MODEL:-}" ]; then selection+=(--model "$MODEL"); fi
if [ -n "${MAX_USD:-}" ]; then selection+=(--max-usd "$MAX_USD"); fi
if [ -n "${MAX_TOKENS:-}" ]; then selection+=(--max-tokens "$MAX_TOKENS"); fi
if [ -n "${MAX_DEVICE_SECONDS:-}" ]; then
  selection+=(--max-device-seconds "$MAX_DEVICE_SECONDS")
fi
if [ -n "${JOBS:-}" ]; then selection+=(--jobs "$JOBS"); fi
if [ -n "${TARGETS:-}" ]; then selection+=(--targets "$TARGETS"); fi
if [ "${TRAINIUM:-}" = true ]; then
  mkdir -p "$build"
  selection+=(--trainium --state "$build/trainium.json")
fi
compilewatch papers run "${selection[@]}" --output "$output"
