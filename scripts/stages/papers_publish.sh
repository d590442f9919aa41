#!/usr/bin/env bash
# Stage "Publish" of the job papers: the report page, and metrics to the services that are set.
#
# The page and the list of papers are copied to $PIPELINE_DIR/papers for the archive.
. "$(dirname "$0")/common.sh"

status=0
compilewatch papers publish --output "$output" || status=$?
mkdir -p "$build/papers"
if [ -d "$output/papers/report" ]; then cp "$output"/papers/report/* "$build/papers/"; fi
compilewatch papers list --json --output "$output" >"$build/papers/papers.json"
exit $status
