#!/usr/bin/env bash
# Runs the stages of the Jenkinsfile in their order on this machine, without Jenkins.
#
# Parameters are variables: scripts/stages/common.sh lists them. The shards run one after
# another. Exit statuses: 0 green; 1 regressions, and FAIL_ON_REGRESSION is true; 2 the monitor failed;
# 130 interrupted. In every case, finished work is in $PIPELINE_DIR/archive (build/archive).
. "$(dirname "$0")/stages/common.sh"

stage() { # NAME COMMAND...
  echo "== $1"
  shift
  "$@"
}

must() { # NAME COMMAND...: a stage that the following ones require
  local code=0
  stage "$@" || code=$?
  if [ $code -ge 128 ]; then exit 130; fi
  if [ $code -ne 0 ]; then exit 2; fi
}

conclude() {
  local status=$? result
  trap - EXIT TERM INT
  stage Archive scripts/stages/archive.sh || status=2
  scripts/stages/summary.sh | python3 -c 'import json, sys; print(json.load(sys.stdin)["text"])' || status=2
  if [ -f "$build/trainium.json" ]; then scripts/stages/trainium_down.sh || status=2; fi
  case $status in 0) result=SUCCESS ;; 1) result=UNSTABLE ;; 130) result=ABORTED ;;
  *) result=FAILURE ;; esac
  say "$result"
  exit $status
}
trap conclude EXIT
trap 'exit 130' TERM INT

status=0
must "Set up" scripts/stages/setup.sh
must Inputs scripts/stages/inputs.sh
must Pull scripts/stages/pull.sh
for part in $(seq "$shards"); do
  code=0
  stage "Sweep $part/$shards" scripts/stages/sweep.sh "$part" || code=$?
  if [ $code -ge 128 ]; then exit 130; fi
  if [ $code -ne 0 ]; then
    say "shard $part/$shards failed ($code), the others continue"
    status=2
  fi
done
must Merge scripts/stages/merge.sh
# Without Jenkins there is no other machine: if this one is no Trainium instance, the stage says so.
if [ "${TRAINIUM:-}" = true ]; then
  FIRST=$(scripts/stages/first.sh)
  export FIRST
  stage Neuron scripts/stages/neuron.sh || say "the Neuron stage did not finish: see above"
  scripts/stages/merge.sh neuron || say "the run of Neuron cannot be imported"
fi
code=0
stage Compare scripts/stages/compare.sh || code=$?
if [ $code -ge 128 ]; then exit 130; fi
if [ $code -gt 1 ]; then exit 2; fi
if [ -n "${FIX:-}" ]; then
  stage Fix scripts/stages/fix.sh || say "the search for fixes did not finish: see above"
fi
stage Publish scripts/stages/publish.sh || status=2
if [ $status -eq 0 ]; then status=$code; fi
exit $status
