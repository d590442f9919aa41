#!/usr/bin/env bash
# Stage "Archive", also after a failure or an abort: copies finished work to $PIPELINE_DIR/archive.
#
# runs/RUN/      each run folder: run.json, results.jsonl, logs, metrics.prom, artifacts
# report/        the main run's HTML report
# junit/RUN.xml  one test case for each model and target
# compare/       what changed, as JSON
# shards/        the files of the shards, if they could not be joined
# neuron-profile.tar.gz  what torch.profiler recorded on the Trainium instance
# SHA256SUMS     the fingerprint of every file
. "$(dirname "$0")/common.sh"
shopt -s nullglob

archive=$build/archive
rm -rf "$archive"
if ! begun; then
  say "nothing to archive: this build ended before its stage Set up"
  exit 0
fi
mkdir -p "$archive"
parts=("$build"/shards/*.tar.gz)
if [ ! -s "$build/runs" ] && [ ${#parts[@]} -gt 0 ] && ! scripts/stages/merge.sh; then
  say "the shards could not be joined: they are archived separately"
fi
if [ -s "$build/runs" ]; then
  # Nothing to do, unless the build ended before the run of Neuron was imported.
  scripts/stages/merge.sh neuron || say "the run of Neuron cannot be imported"
  while read -r run; do
    mkdir -p "$archive/runs" "$archive/junit"
    # Hard links if possible: a run is never written again.
    cp -al "$output/$run" "$archive/runs/" 2>/dev/null || cp -a "$output/$run" "$archive/runs/"
    if [ -f "$output/$run/junit.xml" ]; then
      cp "$output/$run/junit.xml" "$archive/junit/$run.xml"
    fi
    if [ ! -d "$archive/report" ] && [ -d "$output/$run/report" ]; then
      cp -a "$output/$run/report" "$archive/report"
    fi
  done <"$build/runs"
elif [ ${#parts[@]} -gt 0 ]; then
  mkdir -p "$archive/shards"
  cp "${parts[@]}" "$archive/shards/"
fi
if [ -f "$build/neuron-profile.tar.gz" ]; then cp "$build/neuron-profile.tar.gz" "$archive/"; fi
if [ -d "$build/compare" ]; then cp -a "$build/compare" "$archive/"; fi
(cd "$archive" && find . -type f ! -name SHA256SUMS -print0 | sort -z | xargs -0r sha256sum >SHA256SUMS)
say "archived $(wc -l <"$archive/SHA256SUMS") files in $archive"
