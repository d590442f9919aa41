#!/usr/bin/env bash
# Verifies the papers pipeline against the real AWS: scripts/verify_papers.sh [FOLDER]
#
# It costs money: three papers are read, planned, written and reviewed by a model, at most MAX_USD. All
# tests of this repository use servers on the loopback address instead; attach FOLDER to a report.
#
# FOLDER               where results and logs go (outputs/verify-papers)
# BEDROCK_MODEL_ID     the model; without it, the usable models are listed and nothing is paid
# OPENSEARCH_ENDPOINT  also search this domain (with OPENSEARCH_INDEX)
# TRAINIUM_ENDPOINT    train on this executor instead of the sandbox of this machine
# MAX_USD              limit of the three papers (2)
# CLOUDWATCH           true: also send the metrics to the namespace compilewatch/verify
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-outputs/verify-papers}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
scripts/setup.sh
compilewatch=$PWD/.venv/bin/compilewatch
failed=()

check() { # NAME COMMAND...: prints the outcome and continues in any case
  local name=$1
  shift
  echo "== $name"
  if "$@" 2>&1 | tee "$folder/$name.txt"; then echo "ok: $name"; else
    echo "FAILED: $name"
    failed+=("$name")
  fi
}

search() {
  "$compilewatch" papers find --recent-days 365 --max-papers 5
  "$compilewatch" papers find --query '{"match_all": {}}' --max-papers 1 --json
}

papers() { # The shipped papers, whose contribution is known: a real model has to find it.
  local status=0
  "$compilewatch" papers run --random --max-papers 3 --folder inputs/papers/library \
    --provider bedrock --max-usd "${MAX_USD:-2}" --output "$folder/outputs" || status=$?
  # 1 says that something is wrong with a model's code, which is a result of this verification.
  [ $status -le 1 ]
}

again() { # A second run sends no request.
  local before after
  before=$(wc -l <"$folder/outputs/papers/ledger.jsonl")
  papers
  after=$(wc -l <"$folder/outputs/papers/ledger.jsonl")
  echo "lines of the ledger: $before, then $after"
  [ "$before" = "$after" ]
}

watch() {
  COMPILEWATCH_CLOUDWATCH_ENABLED=true COMPILEWATCH_CLOUDWATCH_NAMESPACE=compilewatch/verify \
    "$compilewatch" papers publish --output "$folder/outputs"
}

check preflight "$compilewatch" papers preflight
if [ -n "${OPENSEARCH_ENDPOINT:-}" ]; then check search search; else
  echo "not run: search (set OPENSEARCH_ENDPOINT)"
fi
if [ -n "${BEDROCK_MODEL_ID:-}" ]; then
  check papers papers
  check again again
  if [ "${CLOUDWATCH:-}" = true ]; then check cloudwatch watch; else
    echo "not run: cloudwatch (set CLOUDWATCH=true)"
  fi
else
  echo "not run: papers, again, cloudwatch (set BEDROCK_MODEL_ID)"
fi
if [ ${#failed[@]} -gt 0 ]; then
  echo "failed: ${failed[*]}; see $folder"
  exit 1
fi
echo "everything that was run is ok; see $folder"
