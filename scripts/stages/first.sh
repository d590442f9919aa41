#!/usr/bin/env bash
# Prints the models whose forecast for Neuron changed, most used first, as A,B: the stage Neuron begins with
# them. Prints nothing if the main run has no forecasts, no baseline, or cannot be compared.
. "$(dirname "$0")/common.sh"

run=$(head -n 1 "$build/runs")
base=$(field "$run" baseline)
if [ -z "$base" ]; then exit 0; fi
compilewatch compare "$base" "$run" --output "$output" --json | python -c 'import json, sys
changes = json.load(sys.stdin)["changes"]
changed = [change["model"] for change in changes if change["kind"] == "forecast_changed"]
print(",".join(list(dict.fromkeys(changed))[:100]))' || say "the stage Neuron begins as usual: see above" >&2
