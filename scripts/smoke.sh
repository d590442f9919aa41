#!/usr/bin/env bash
# Verifies the set-up with a real Jenkins: scripts/smoke.sh
#
# For a machine with Docker. All other tests of this repository that concern Jenkins run without it. This
# script checks the rest: the images build and the plugins resolve, the controller accepts its
# configuration, the agent connects, the job exists and its Jenkinsfile is valid, and builds sweep,
# archive and can be aborted. It takes about half an hour with cold caches.
#
# KEEP=1        keep everything running afterwards
# COMPOSE_FILE  what to start (stack/jenkins/compose.yaml: Jenkins and its agent alone)
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
export COMPOSE_FILE=${COMPOSE_FILE:-stack/jenkins/compose.yaml}
export COMPOSE_PROFILES=${COMPOSE_PROFILES:-jenkins}
export COMPOSE_PROJECT_NAME=${COMPOSE_PROJECT_NAME:-compilewatch-smoke}
export COMPILEWATCH_PUSHGATEWAY_URL=${COMPILEWATCH_PUSHGATEWAY_URL-}
scratch=$(mktemp -d)
export COMPILEWATCH_OUTPUT_DIR=$scratch/outputs
url=http://127.0.0.1:8080
job=$url/job/compilewatch
failed=()

for tool in docker curl python3; do
  command -v $tool >/dev/null || { echo "smoke: $tool is missing" >&2; exit 2; }
done
docker info >/dev/null || { echo "smoke: the Docker engine does not respond; start it" >&2; exit 2; }

check() { # NAME COMMAND...: prints the outcome and continues in any case
  echo "== $1"
  if "${@:2}"; then echo "ok: $1"; else
    echo "FAILED: $1"
    failed+=("$1")
  fi
}

finish() {
  if [ -z "${KEEP:-}" ]; then docker compose down --volumes --timeout 10 >/dev/null 2>&1; fi
  rm -rf "$scratch"
}
trap finish EXIT

fetch() { curl -gsS --fail-with-body --user "admin:$password" --cookie-jar "$scratch/jar" \
  --cookie "$scratch/jar" "$@"; }

post() { # POST with a crumb, as a browser does
  local crumb
  crumb=$(fetch "$url/crumbIssuer/api/json" | value 'd["crumbRequestField"] + ":" + d["crumb"]')
  fetch --request POST --header "$crumb" "$@"
}

value() { python3 -c 'import json, sys
d = json.load(sys.stdin)
print(eval(sys.argv[1]))' "$1"; }

until_true() { # SECONDS COMMAND...
  local end=$((SECONDS + $1))
  until "${@:2}" >/dev/null 2>&1; do
    [ $SECONDS -lt $end ] || return 1
    sleep 3
  done
}

started() {
  mkdir -p "$COMPILEWATCH_OUTPUT_DIR" && chmod 777 "$COMPILEWATCH_OUTPUT_DIR"
  docker compose up --detach --wait --wait-timeout 600
}

configured() { # Jenkins logs configuration that JCasC or Job DSL did not accept
  ! docker compose logs jenkins | grep -E 'ConfiguratorException|UnknownAttributes|SEVERE'
}

closed() { # Without a password there is no access, and without a crumb no POST
  [ "$(curl -s -o /dev/null -w '%{http_code}' "$url/api/json")" = 403 ] &&
    [ "$(curl -s -o /dev/null -w '%{http_code}' --user "admin:$password" --cookie "$scratch/none" \
      --request POST "$job/disable")" = 403 ]
}

connected() {
  fetch "$url/computer/api/json?tree=computer[displayName,offline,numExecutors]" | value '
{c["displayName"]: c["offline"] for c in d["computer"]}.get("home") is False' | grep True
}

no_executors() {
  fetch "$url/computer/(built-in)/api/json" | value 'd["numExecutors"]' | grep -x 0
}

valid() {
  post --form "jenkinsfile=<Jenkinsfile" "$url/pipeline-model-converter/validate" | tee /dev/stderr |
    grep -q 'successfully validated'
}

ended() { [ "$(fetch "$job/$1/api/json?tree=building" | value 'd["building"]')" = False ]; }

build() { # PARAMETERS...: starts one, sets `number`
  number=$(fetch "$job/api/json?tree=nextBuildNumber" | value 'd["nextBuildNumber"]')
  post "$job/buildWithParameters" "${@/#/--data-urlencode=}" && until_true 120 fetch "$job/$number/api/json"
}

result_is() { # NUMBER RESULT
  until_true 3600 ended "$1"
  local result
  result=$(fetch "$job/$1/api/json?tree=result" | value 'd["result"]')
  [ "$result" = "$2" ] && return
  echo "build $1 ended as $result:"
  fetch "$job/$1/consoleText" | tail -n 60
  return 1
}

holds() { # NUMBER PATTERN: an artifact
  fetch "$job/$1/api/json?tree=artifacts[relativePath]" |
    value '"\n".join(a["relativePath"] for a in d["artifacts"])' | grep -E "$2"
}

sweeps() {
  build FAMILIES=bert,t5 SHARDS=2 SOURCE=library && result_is "$number" SUCCESS &&
    holds "$number" 'archive/runs/.*/results.jsonl$' && holds "$number" 'archive/SHA256SUMS$' &&
    fetch "$job/$number/testReport/api/json" | value 'd["passCount"] > 0' | grep True &&
    fetch "$job/$number/fingerprints/" >/dev/null
}

report_shows() { # Under Jenkins' strict policy for artifacts
  fetch --dump-header "$scratch/headers" "$job/Report/index.html" | grep -q compilewatch &&
    grep -i content-security-policy "$scratch/headers"
}

again_is_compared() {
  build FAMILIES=bert,t5 SHARDS=2 SOURCE=library && result_is "$number" SUCCESS &&
    holds "$number" 'archive/compare/.*\.json$'
}

aborts() {
  build TOP=25 SHARDS=2 SOURCE=library FRESH=true || return 1
  until_true 900 swept_some || return 1
  post "$job/$number/stop" && result_is "$number" ABORTED && holds "$number" 'results.jsonl$'
}

swept_some() { fetch "$job/$number/consoleText" | grep -E '^.*[0-9]+ of [0-9]+: [0-9]+ pass'; }

rejects_a_baseline() {
  build BASELINE=20200101-000000-0000 FAMILIES=bert && result_is "$number" FAILURE &&
    fetch "$job/$number/consoleText" | grep 'no such run here'
}

loses_an_agent() { # Its shard is tried again when it is back
  build FAMILIES=bert,t5 SHARDS=1 SOURCE=library FRESH=true || return 1
  until_true 300 swept_some || return 1
  docker compose restart --timeout 0 agent && result_is "$number" SUCCESS
}

keeps_its_jobs() { # A start of the controller writes the jobs anew: complete, or the nightly run is missing
  local before
  before=$(fetch "$job/config.xml" | sed -n '/<properties>/,/<\/properties>/p')
  grep -q '<spec>H 3 \* \* \*</spec>' <<<"$before" && grep -q '<name>SHARDS</name>' <<<"$before" || return 1
  docker compose restart jenkins && until_true 300 connected || return 1
  [ "$(fetch "$job/config.xml" | sed -n '/<properties>/,/<\/properties>/p')" = "$before" ] &&
    [ "$(fetch "$job/api/json?tree=lastBuild[number]" | value 'd["lastBuild"]["number"]')" = "$number" ]
}

describes() { # What a build found is on its page
  fetch "$job/$1/api/json?tree=description" | value 'd["description"]' | grep 'without graph breaks'
}

stack/jenkins/secrets.sh
password=$(cat stack/secrets/jenkins_admin_password)
check "images build, plugins resolve" docker compose build
check "everything starts and is healthy" started
check "the configuration is accepted" configured
check "there is no access without a password or a crumb" closed
check "the controller builds nothing" no_executors
check "the agent connects" until_true 300 connected
check "the Jenkinsfile is valid" valid
check "the job was queued at the first start and succeeds" result_is 1 SUCCESS
check "a build sweeps in two shards and archives" sweeps
check "the build says what it found" describes "${number:-1}"
check "the report shows" report_shows
check "a second build is compared with the first" again_is_compared
check "an aborted build archives finished work" aborts
check "a baseline that does not exist is rejected" rejects_a_baseline
check "if an agent is lost, its shard is retried and the build succeeds" loses_an_agent
check "a restart of the controller keeps jobs and builds" keeps_its_jobs

echo
if [ ${#failed[@]} -eq 0 ]; then echo "verified: Jenkins works here"; else
  echo "NOT verified: ${#failed[@]} of 16 failed"
  exit 1
fi
