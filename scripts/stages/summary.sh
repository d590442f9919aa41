#!/usr/bin/env bash
# After the stage "Archive": what this build found, for its description and the mails, as JSON with the fields
# `text` (lines), `html` (with links) and `trainium` (what is wrong with its results, or empty).
. "$(dirname "$0")/common.sh"

if begun && [ -s "$build/runs" ]; then
  python -m scripts.build_summary "$build" "$output"
else
  echo '{"text": "No results: the log shows why.", "html": "no results: see the log", "trainium": ""}'
fi
