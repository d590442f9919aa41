# Sourced by every stage: paths, and the parameters of the pipeline.
#
# The parameters of the Jenkins job reach a stage as variables; unset and empty mean the same:
#
# SOURCE              auto, library, hub or manifest (the setting `source`)
# TOP                 how many of the most used models, or `all` (the setting `top`)
# TASKS               with SOURCE=hub: only models of this pipeline tag, such as text-generation
# FAMILIES            A,B: only models of these families
# TARGETS, MODES      A,B (the settings `targets`, `modes`)
# ENVIRONMENTS        A,B: run in each of these; torch-2.9.0 is created with that version of torch
# SHARDS              number of parts of the sweep (2)
# BASELINE            auto, none or the id of a run (auto)
# PROFILE             how many of the most used models of each part get an inference profile (none)
# FIX                 for so many minutes, search fixes of the run's graph breaks (none)
# FAIL_ON_REGRESSION  true: the stage `compare` ends with status 1 on a regression (true)
# SHAPES              true: also call each model with ten sizes on dynamo, to count compilations (false)
# FORECAST            true: where the environment `lowering` exists, also forecast what Neuron can compile (true)
# FRESH               true: ignore stored results and evaluate every model again (false)
# TRAINIUM            true: start the Trainium instance and run the Neuron target on it (false)
#
# FIRST               A,B: the stage Neuron begins with these models (first.sh prints them)
# KEEP_SWEEPS         how many earlier sweeps an agent keeps, to reuse their results (20)
# PIPELINE_DIR        folder in which the stages store files for each other and for the archive (build)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export PATH=$PWD/.venv/bin:$PATH

build=${PIPELINE_DIR:-build}
output=${COMPILEWATCH_OUTPUT_DIR:-outputs}
shards=${SHARDS:-2}

say() { echo "pipeline: $*"; }

fail() { # MESSAGE: one line on what happened and what to do
  echo "pipeline: $*" >&2
  exit 2
}

# The build that the folder belongs to, so that no build archives files of an earlier one.
owner=${BUILD_TAG:-by hand}

begun() { [ -f "$build/owner" ] && [ "$(cat "$build/owner")" = "$owner" ]; }

select_models() { # Sets `selection`: the models to sweep, the same for every shard of a plan.
  selection=()
  if [ -n "${SOURCE:-}" ]; then selection+=(--source "$SOURCE"); fi
  if [ -n "${FAMILIES:-}" ]; then selection+=(--families "$FAMILIES"); fi
  if [ "${TOP:-}" = all ]; then selection+=(--all); elif [ -n "${TOP:-}" ]; then
    selection+=(--top "$TOP")
  fi
  if [ -n "${MODES:-}" ]; then selection+=(--modes "$MODES"); fi
  if [ "${FRESH:-}" = true ]; then selection+=(--fresh); fi
}

select_sweep() { # Sets `selection`: everything that a shard is started with, but its environments and number
  local targets=${TARGETS:-dynamo}
  select_models
  case $targets,${ENVIRONMENTS:-} in
  all,* | *neuron*) ;;
  *,) if [ "${FORECAST:-true}" = true ] && compilewatch env describe lowering >/dev/null 2>&1; then
    targets+=,neuron
  fi ;;
  esac
  selection+=(--targets "$targets")
  if [ -n "${PROFILE:-}" ]; then selection+=(--profile "$PROFILE"); fi
  if [ "${SHAPES:-}" = true ]; then selection+=(--shapes); fi
}

create_environments() { # Those that ENVIRONMENTS and TARGETS name; quick if they exist
  local name target names targets
  IFS=, read -ra names <<<"${ENVIRONMENTS:-}"
  IFS=, read -ra targets <<<"${TARGETS:-}"
  for target in "${targets[@]}"; do
    case $target in xla*) names+=(xla) ;; neuron*) names+=(lowering) ;; all) names+=(xla lowering) ;; esac
  done
  for name in "${names[@]}"; do
    case $name in
    default) ;;
    torch-*) compilewatch env create "$name" --torch "${name#torch-}" ;;
    xla | lowering | neuron) compilewatch env create "$name" ;;
    *) compilewatch env check "$name" ;;
    esac
  done
}

pack() { # RUN ARCHIVE: one file, either complete or absent
  mkdir -p "$(dirname "$2")"
  tar -czf "$2.new" -C "$1" . && mv "$2.new" "$2" && return
  rm -f "$2.new"
  fail "$1 could not be packed (see above; is the disk full?): its results stay there"
}

quietly() { # Publishes nothing, whatever is set: shards and runs that are not compared yet; see publish.sh
  COMPILEWATCH_PUSHGATEWAY_URL='' COMPILEWATCH_LOKI_URL='' COMPILEWATCH_S3_URL='' "$@"
}

sweep_part() { # ARCHIVE ARGUMENTS...: sweeps, for `limit` at most, and packs the run in every case
  local archive=$1 store=$build/sweeps before after status=0
  shift
  mkdir -p "$store"
  rm -f "$archive"
  # Packed runs are no longer needed; the newest ones contain results that the next sweep reuses.
  find "$store" -maxdepth 1 -name '2*-*' | sort | head -n -"${KEEP_SWEEPS:-20}" | xargs -r rm -rf
  before=$(readlink "$store/latest" || true)
  # An aborted build sends SIGTERM to all processes: the sweep ends by itself, this process packs.
  trap 'true' TERM INT
  quietly ${limit:+timeout "$limit"} compilewatch sweep "$@" --baseline none --output "$store" || status=$?
  after=$(readlink "$store/latest" || true)
  if [ "$after" != "$before" ]; then pack "$store/$after" "$archive"; else
    say "no results: the sweep ended with status $status before the first one" >&2
  fi
  return $status
}

adopt() { # ARCHIVE...: joins packed runs into a run in $output and records its id
  local archive folder text status=0 parts=()
  for archive in "$@"; do
    folder=$build/parts/$(basename "$archive" .tar.gz)
    rm -rf "$folder" && mkdir -p "$folder"
    if tar -xzf "$archive" -C "$folder" && python -m json.tool "$folder/run.json" >/dev/null; then
      parts+=("$folder/")
    else
      say "$archive cannot be read and is ignored" >&2
    fi
  done
  [ ${#parts[@]} -gt 0 ] || fail "no shard has results: the stage Sweep shows the reason"
  # 3: results are missing, which the run and the stage Publish report.
  text=$(COMPILEWATCH_BASELINE=${BASELINE:-auto} quietly compilewatch merge "${parts[@]}" \
    --output "$output") || status=$?
  if [ $status -ne 0 ] && [ $status -ne 3 ]; then return $status; fi
  echo "$text"
  grep -oE '[0-9]{8}-[0-9]{6}-[0-9a-f]{4}' <<<"$text" | tail -n 1 >>"$build/runs"
}

field() { # RUN NAME: a field of a stored run, empty if it has none; the items of a list with commas
  compilewatch runs --output "$output" --json | python -c 'import json, sys
run = next(run for run in json.load(sys.stdin) if run["id"] == sys.argv[1])
value = run[sys.argv[2]] or ""
print(value if isinstance(value, str) else ", ".join(value))' "$1" "$2"
}
