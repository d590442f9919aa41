#!/usr/bin/env bash
# Stage "Run" of the job papers: papers through every stage, into $COMPILEWATCH_OUTPUT_DIR/papers.
#
# QUERY or RECENT_DAYS select papers, MAX_PAPERS and MAX_USD limit them, PROVIDER and MODEL name the
# language model. The status is 1 if something is wrong with a paper's code, 3 if a stage was not run.
. "$(dirname "$0")/common.sh"

selection=(--max-papers "${MAX_PAPERS:-5}" --provider "${PROVIDER:-bedrock}")
if [ -n "${QUERY:-}" ]; then selection+=(--query "$QUERY"); else
  selection+=(--recent-days "${RECENT_DAYS:-1}")
fi
if [ -n "${MODEL:-}" ]; then selection+=(--model "$MODEL"); fi
if [ -n "${MAX_USD:-}" ]; then selection+=(--max-usd "$MAX_USD"); fi
compilewatch papers run "${selection[@]}" --output "$output"
