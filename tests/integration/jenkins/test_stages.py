"""The stages' scripts, by hand, on stored runs: what they leave, and what they say in trouble."""

import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import msgspec
import pytest

from compilewatch.records import NeuronDetail, Shard, Status, Target
from tests import factories
from tests.fake_launcher import FakeLauncher, passing
from tests.integration.jenkins.conftest import ROOT, Job
from tests.serving import serving
from tests.sweeping import breaking, run_sweep, store

SPECS = [factories.spec(f"M{number}") for number in range(12)]
STAGES = ROOT / "scripts" / "stages"
Done = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class Build:
    """The folders of a build that the stage Set up has begun, and its stages."""

    folder: Path

    def environ(self, **variables: str) -> dict[str, str]:
        """Nothing is set but what a test sets."""
        foreign = ("COMPILEWATCH_", "BUILD_")
        return {k: v for k, v in os.environ.items() if not k.startswith(foreign)} | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "src"),
            "PIPELINE_DIR": str(self.folder / "build"),
            "COMPILEWATCH_OUTPUT_DIR": str(self.folder / "outputs"),
            "NO_COLOR": "1",
            "FORECAST": "false",
            **variables,
        }

    def run(self, *command: str | Path, **variables: str) -> Done:
        given = self.environ(**variables)
        return subprocess.run(command, env=given, capture_output=True, text=True, check=False)

    def stage(self, name: str, **variables: str) -> Done:
        return self.run(STAGES / f"{name}.sh", **variables)

    def stage_with(self, lines: str, name: str, **variables: str) -> Done:
        """Run a stage with a `compilewatch` that runs these lines of shell before the real one."""
        program = self.folder / "bin" / "compilewatch"
        program.parent.mkdir(exist_ok=True)
        real = Path(sys.executable).with_name("compilewatch")
        program.write_text(f'#!/bin/sh\n{lines}\nexec {real} "$@"\n')
        program.chmod(0o755)
        # The stage itself puts .venv/bin of the checkout first.
        head = f'. "{STAGES}/common.sh"\nPATH={program.parent}:$PATH\n'
        text = (STAGES / f"{name}.sh").read_text()
        return self.run(
            "bash", "-c", text.replace('. "$(dirname "$0")/common.sh"\n', head), **variables
        )

    def leave_shard(self, index: int, specs: Sequence[Any] = SPECS, **given: Any) -> Path:
        """Sweep a part without processes and pack it, as the stage Sweep does."""
        agent = self.folder / f"agent-{index}"
        shard = Shard(index=index, count=2)
        run = run_sweep(agent, shard=shard, fresh=True, specs=specs, **given).run
        path = self.folder / "build" / "shards" / f"{index}.tar.gz"
        with tarfile.open(path, "w:gz") as archive:
            archive.add(store(agent).root / run.id, arcname=".")
        return path

    def leave_run(self, launcher: FakeLauncher | None = None) -> str:
        """Leave both shards of a run and merge them; return the id of the run."""
        for index in (1, 2):
            self.leave_shard(index, launcher=launcher)
        done = self.stage("merge")
        assert done.returncode == 0, done.stderr
        (run,) = self.merged()
        return run

    def merged(self) -> list[str]:
        return (self.folder / "build" / "runs").read_text().split()

    def summary(self, **variables: str) -> dict[str, str]:
        done = self.stage("summary", **variables)
        assert done.returncode == 0, done.stderr
        loaded: dict[str, str] = json.loads(done.stdout)
        return loaded

    def archived(self, **variables: str) -> set[str]:
        """Archive; the files but most of the report's, with `RUN` for ids."""
        done = self.stage("archive", **variables)
        assert done.returncode == 0, done.stderr
        root = self.folder / "build" / "archive"
        names = {str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()}
        for run in self.merged() if (self.folder / "build" / "runs").exists() else []:
            names = {name.replace(run, "RUN") for name in names}
        return {name for name in names if "report/" not in name or name.endswith("/index.html")}


def begun(folder: Path) -> Build:
    (folder / "build" / "shards").mkdir(parents=True)
    (folder / "build" / "owner").write_text("by hand\n")
    return Build(folder)


@pytest.fixture
def build(tmp_path: Path) -> Build:
    return begun(tmp_path)


@pytest.fixture(scope="module")
def worse(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """A build whose run, merged of two shards, is worse than the one before."""
    build = begun(tmp_path_factory.mktemp("worse"))
    build.leave_run()
    build.leave_run(FakeLauncher(answers=breaking({"M3": [factories.graph_break()]})))
    return build


def test_shards_become_a_run_that_is_compared_and_archived(worse: Build) -> None:
    (run,) = worse.merged()
    assert len(store(worse.folder).open(run).results()) == len(SPECS)
    compared = worse.stage("compare")
    assert compared.returncode == 1
    assert "has regressions compared with" in compared.stdout
    assert worse.stage("compare", FAIL_ON_REGRESSION="false").returncode == 0
    report = json.loads((worse.folder / "build" / "compare" / f"{run}.json").read_text())
    assert [c["model"] for c in report["changes"] if c["kind"] == "regression"] == ["M3"]
    assert "no service is set" in worse.stage("publish").stdout
    assert worse.archived() >= {
        *("SHA256SUMS", "junit/RUN.xml", "report/index.html", "runs/RUN/report/index.html"),
        *("runs/RUN/run.json", "runs/RUN/results.jsonl", "runs/RUN/metrics.prom"),
        *("runs/RUN/junit.xml", "runs/RUN/logs/RUN.jsonl", "compare/RUN.json"),
    }
    check = ["sha256sum", "--check", "--quiet", "SHA256SUMS"]
    subprocess.run(check, cwd=worse.folder / "build" / "archive", check=True)


def test_a_build_says_what_it_found_and_where_to_read_on(worse: Build) -> None:
    page = "http://jenkins/job/compilewatch/7/"
    found = worse.summary(BUILD_URL=page, GRAFANA_URL="http://grafana/")
    said = "11 of 12 without graph breaks, 1 regression: M3"
    first, report, dashboards = found["text"].splitlines()
    assert (first, found["trainium"]) == (said, "")
    assert report == f"report: {page}Report/"
    # At the time of the run, not at that of the reader.
    assert re.fullmatch(
        r"dashboards: http://grafana/d/compilewatch-overview\?from=\d{13}&to=\d{13}", dashboards
    )
    assert found["html"].startswith(f'{said} · <a href="{page}Report/">')
    assert "&amp;to=" in found["html"]
    assert worse.summary()["html"] == said


@pytest.mark.matrix
def test_a_build_that_could_not_publish_says_why(worse: Build) -> None:
    nobody = "http://127.0.0.1:9"
    given = {"COMPILEWATCH_PUSHGATEWAY_URL": nobody, "COMPILEWATCH_PUBLISH_RETRY_SECONDS": "1"}
    failed = worse.stage("publish", **given)
    assert failed.returncode != 0
    last = failed.stderr.splitlines()[-1].removeprefix("compilewatch: ")
    assert nobody in last
    assert worse.summary()["text"].splitlines()[1:] == [f"Publish: {last}"]
    # The next build that publishes has nothing to say about it.
    assert worse.stage("publish").returncode == 0
    assert "Publish" not in worse.summary()["text"]


def test_a_problem_with_trainium_is_part_of_what_a_build_found(worse: Build) -> None:
    done = worse.stage("trainium_up", AWS_CONFIG_FILE="/none", AWS_EC2_METADATA_DISABLED="true")
    assert done.returncode != 0
    assert "AWS" in done.stderr
    found = worse.summary(TRAINIUM="true")
    reason = done.stderr.strip().splitlines()[-1]
    assert found["trainium"] == f"no results: {reason}"
    assert f"Trainium: no results: {reason}" in found["text"].splitlines()
    assert worse.summary()["trainium"] == ""
    (worse.folder / "build" / "trainium.problem").unlink()
    assert "the log of the stage Neuron says why" in worse.summary(TRAINIUM="true")["trainium"]


AGENT = """
echo "$@" >>{folder}/ran
cd $PIPELINE_DIR
case "$1 $2" in
"env describe") [ "$3" = "$HAS" ] || exit 1 ;;
"sweep "*) cp -a {run} sweeps/ && ln -sfn {run.name} sweeps/latest; exit $ENDED ;;
"profile "*) mkdir -p neuron-profile && touch neuron-profile/ntrace.pb ;;
esac
exit
"""


def timed(request: Any) -> Any:
    """An answer of the target neuron: M7 takes the longest on the device, M8 never got there."""
    seconds = {"M3": 0.001, "M7": 0.5}.get(request.model.name)
    detail = NeuronDetail(target="trn2", route="native", latency_seconds=seconds)
    return msgspec.structs.replace(passing(request), details=detail)


@pytest.mark.parametrize(
    ("has", "ended", "swept", "profiled"),
    [
        (
            "neuron",
            "0",
            "--depth reduced --shard 1/1 --first M3,org/M4 --targets dynamo,neuron --environments "
            "neuron --device neuron --modes eval,train --train-top 5 --baseline none",
            True,
        ),
        ("neuron", "124", "--train-top 5 --baseline none", True),
        ("neuron", "130", "--train-top 5 --baseline none", False),
        ("neuron-xla", "0", "--first M3,org/M4 --targets neuron --baseline none", False),
    ],
)
def test_the_neuron_stage_does_what_its_sdk_can(
    build: Build, has: str, ended: str, swept: str, profiled: bool
) -> None:
    """With a stand-in for what starts workers; the run that it leaves is a real one."""
    launcher = FakeLauncher(answers=timed)
    run = run_sweep(build.folder / "agent", launcher, specs=SPECS).run
    stored = store(build.folder / "agent").root / run.id
    program = AGENT.format(folder=build.folder, run=stored)
    (build.folder / "neuron-ls").touch(mode=0o755)
    path = f"{build.folder}:{build.environ()['PATH']}"
    given = {"PATH": path, "HAS": has, "ENDED": ended, "FIRST": "M3,org/M4"}
    done = build.stage_with(program, "neuron", **given)
    assert done.returncode == int(ended), done.stderr
    ran = (build.folder / "ran").read_text().splitlines()
    assert ran[:2] == ["env describe neuron-xla", f"env create {has}"]
    assert ran[2].startswith("sweep ")
    assert swept in ran[2]
    folder = build.folder / "build"
    assert (folder / "neuron.tar.gz").exists()
    assert (folder / "neuron-profile.tar.gz").exists() is profiled
    assert [line.split()[3] for line in ran[3:]] == ["M7"] * profiled


def test_a_machine_without_the_sdk_is_named(build: Build) -> None:
    done = build.stage("neuron")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "there is no Neuron SDK on this machine" in done.stderr


def test_the_run_of_neuron_is_imported_once_and_its_profile_archived(build: Build) -> None:
    main = build.leave_run()
    agent = store(build.folder / "agent")
    run = run_sweep(build.folder / "agent", specs=SPECS, settings={"depth": "reduced"}).run
    folder = build.folder / "build"
    subprocess.run(
        ["tar", "-czf", folder / "neuron.tar.gz", "-C", agent.root / run.id, "."], check=True
    )
    (folder / "neuron-profile.tar.gz").touch()
    # Jenkins fetches the archive again for the stage Archive.
    for _ in range(2):
        assert build.run(STAGES / "merge.sh", "neuron").returncode == 0
    assert "neuron-profile.tar.gz" in build.archived()
    first, second = build.merged()
    assert first == main
    assert store(build.folder).open(second).run.merged_from == (run.id,)


def test_the_neuron_stage_begins_with_the_models_whose_forecast_changed(build: Build) -> None:
    """Only here the forecasts of stored runs, the JSON of `compare` and the stage meet."""

    def forecasting(*failing: str) -> FakeLauncher:
        def answer(request: Any) -> Any:
            fails = request.model.name in failing
            status = Status.FORECAST_FAIL if fails else Status.FORECAST_PASS
            return msgspec.structs.replace(passing(request), status=status)

        packages = {"torch-mlir": "20261001"}
        return FakeLauncher(environments=("lowering",), answers=answer, packages=packages)

    targets = [Target(name="neuron")]
    for failing, said in ((("M1", "M5"), ""), (("M5", "M9"), "M1,M9")):
        for index in (1, 2):
            build.leave_shard(index, launcher=forecasting(*failing), targets=targets)
        assert build.stage("merge").returncode == 0
        done = build.stage("first")
        assert (done.returncode, done.stdout.strip()) == (0, said), done.stderr


@pytest.mark.parametrize(
    ("given", "selected"),
    [
        ({}, "--targets dynamo,neuron"),
        ({"TARGETS": "export"}, "--targets export,neuron"),
        ({"TARGETS": "neuron:trn3"}, "--targets neuron:trn3"),
        ({"TARGETS": "all"}, "--targets all"),
        ({"FORECAST": "false"}, "--targets dynamo"),
        ({"FORECAST": "false", "SHAPES": "true"}, "--targets dynamo --shapes"),
        ({"ENVIRONMENTS": "torch-2.9.0"}, "--targets dynamo"),
        ({"HAS": "none"}, "--targets dynamo"),
    ],
)
def test_a_sweep_forecasts_where_that_is_possible(
    build: Build, given: dict[str, str], selected: str
) -> None:
    stub = 'compilewatch() { [ "$*" = "env describe $HAS" ]; }'
    lines = f'. "$0"; {stub}; select_sweep; echo "${{selection[@]}}"'
    variables = {"FORECAST": "", "HAS": "lowering", **given}
    done = build.run("bash", "-c", lines, STAGES / "common.sh", **variables)
    assert done.stdout.strip() == selected, done.stderr


def test_fixes_are_searched_in_the_main_run_and_archived_with_its_report(worse: Build) -> None:
    """With a stand-in for the search, which starts workers; the report is the real one."""
    (run,) = worse.merged()
    program = (
        f'echo "$@" >>{worse.folder}/ran\n'
        f"case $1 in fix) echo x >{worse.folder}/outputs/$3/verify.py; exit $FIXED ;; esac"
    )
    for minutes, status, ended, said in (
        ("", "0", 0, "FIX is empty"),
        ("2", "1", 0, ""),
        ("2", "3", 0, "the limit of 2 minutes has left models"),
        ("2", "2", 2, ""),
    ):
        done = worse.stage_with(program, "fix", FIX=minutes, FIXED=status)
        assert (done.returncode, said in done.stdout) == (ended, True), done.stderr
    first, report, *_ = (worse.folder / "ran").read_text().splitlines()
    assert first.startswith(f"fix --all-of {run} ")
    assert "--max-seconds 120" in first
    assert report.startswith(f"report {run} ")
    assert "runs/RUN/verify.py" in worse.archived()


def test_a_missing_or_torn_shard_is_named_and_the_rest_archived_but_not_published(
    build: Build,
) -> None:
    build.leave_shard(1)
    path = build.leave_shard(2)
    path.write_bytes(path.read_bytes()[:200])
    done = build.stage("merge")
    assert done.returncode == 0
    assert "2.tar.gz cannot be read and is ignored" in done.stderr
    assert "merge it again with the missing shards 2/2" in done.stdout
    assert build.summary()["text"].endswith("without graph breaks, shards are missing: 2/2")
    assert build.summary(BUILD_TAG="jenkins-compilewatch-8")["text"].startswith("No results")
    refused = build.stage("publish", COMPILEWATCH_PUSHGATEWAY_URL="http://127.0.0.1:1")
    assert refused.returncode == 0
    assert "is not published, it lacks shards (2/2)" in refused.stdout
    assert "runs/RUN/results.jsonl" in build.archived()


def test_no_shard_left_results(build: Build) -> None:
    done = build.stage("merge")
    assert done.returncode == 2
    assert done.stderr == "pipeline: no shard has results: the stage Sweep shows the reason\n"
    assert build.summary()["text"] == "No results: the log shows why."
    for name in ("compare", "publish"):
        assert build.stage(name).returncode == 2
    assert build.archived() == {"SHA256SUMS"}


def test_shards_of_two_plans_are_archived_as_they_are(build: Build) -> None:
    build.leave_shard(1)
    build.leave_shard(2, SPECS[:5])
    done = build.stage("merge")
    assert done.returncode == 2
    assert "are of different plans" in done.stderr
    assert {"shards/1.tar.gz", "shards/2.tar.gz"} <= build.archived()


def test_an_aborted_build_archives_what_its_shards_left(build: Build) -> None:
    build.leave_shard(2)
    # Nothing of an earlier build is archived.
    other = build.stage("archive", BUILD_TAG="jenkins-compilewatch-8")
    assert (other.returncode, "ended before its stage Set up" in other.stdout) == (0, True)
    assert not (build.folder / "build" / "archive").exists()
    assert "runs/RUN/results.jsonl" in build.archived()
    (run,) = build.merged()
    assert store(build.folder).open(run).run.missing_shards == ("1/2",)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"SHARDS": "abc"}, "SHARDS=abc is not a number of parts: use 1 or more"),
        ({"TOP": "-1"}, "TOP=-1 is not a number of models: use 1 or more, or all"),
        ({"FIX": "yes"}, "FIX=yes is not a number of minutes: use 1 or more, or leave it empty"),
        ({"ENVIRONMENTS": "default;x"}, "ENVIRONMENTS=default;x is not a list of environments"),
        ({"TARGETS": "nonsense"}, "no target 'nonsense'"),
        ({"BASELINE": "20200101-000000-0000"}, "BASELINE=20200101-000000-0000: no such run here"),
    ],
)
def test_a_wrong_parameter_ends_the_build_before_anything_is_started(
    build: Build, variables: dict[str, str], said: str
) -> None:
    done = build.stage("inputs", **variables)
    assert done.returncode != 0
    assert said in done.stderr
    assert len(done.stderr.splitlines()) <= 2, done.stderr
    # Neither an environment was created nor this machine examined: both take long.
    assert "doctor" not in done.stdout
    assert not (build.folder / "outputs").exists()


@pytest.mark.matrix
@pytest.mark.parametrize("source", ["auto", "hub"])
def test_the_parameters_of_a_nightly_build_are_right(
    build: Build, jobs: dict[str, Job], source: str
) -> None:
    """With a stand-in for the doctor and for the models' inputs, which start workers."""
    defaults = jobs["compilewatch"].defaults.items()
    given = {n: str(v).lower() if isinstance(v, bool) else v for n, v in defaults}
    program = 'case $1 in doctor | inputs) echo "$@"; exit ;; esac'
    variables = {**given, "SOURCE": source, "SHARDS": "3", "TOP": "7"}
    done = build.stage_with(program, "inputs", **variables)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("--dry-run: nothing is evaluated\ndoctor\ninputs BertModel\n")
    assert "as part 1/3" in done.stdout


def test_a_hub_that_fails_costs_nothing_where_there_is_a_list(build: Build) -> None:
    assert "nothing to pull" in build.stage("pull", SOURCE="library").stdout
    pulled = build.folder / "pulled"
    # A Hub that has nothing: one that does not answer at all is asked again and again.
    with serving(SimpleHTTPRequestHandler) as url:
        given = {"SOURCE": "hub", "HF_ENDPOINT": url, "COMPILEWATCH_PULLED_DIR": str(pulled)}
        done = build.stage("pull", **given)
        assert done.returncode == 2
        assert "there is no earlier list" in done.stderr
        pulled.mkdir()
        (pulled / "models.toml").write_text("schema_version = 1\n")
        assert "uses the list as it is" in build.stage("pull", **given).stdout


def test_a_full_disk_is_said_and_leaves_no_half_archive(build: Build) -> None:
    """A limit on a file's size stands for the disk: tar meets the error at the same place."""
    stored = run_sweep(build.folder, specs=SPECS).run
    packed = build.folder / "build" / "packed" / "1.tar.gz"
    limited = '. "$0"; trap "" XFSZ; ulimit -f 1; pack "$1" "$2"'
    folder = store(build.folder).root / stored.id
    done = build.run("bash", "-c", limited, STAGES / "common.sh", folder, packed)
    assert done.returncode == 2
    assert "is the disk full?" in done.stderr
    assert list(packed.parent.iterdir()) == []


@pytest.mark.matrix
def test_a_preflight_of_papers_leaves_what_it_found(build: Build) -> None:
    done = build.stage("papers_preflight", PROVIDER="bedrock", AWS_EC2_METADATA_DISABLED="true")
    assert done.returncode == 1
    left = (build.folder / "build" / "papers" / "preflight.txt").read_text()
    assert left == done.stdout
    assert "model:   " in left


@pytest.mark.matrix
@pytest.mark.torch
def test_an_aborted_sweep_packs_its_results(build: Build) -> None:
    """SIGTERM to every process of the stage, as Jenkins does it."""
    given = {"SOURCE": "library", "FAMILIES": "bert,gpt2,t5,bart", "SHARDS": "1", "FRESH": "true"}
    process = subprocess.Popen(
        [STAGES / "sweep.sh", "1"],
        env=build.environ(**given, COMPILEWATCH_JOBS="1"),
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    results = build.folder / "build" / "sweeps"
    until = time.monotonic() + 120
    while not any(p.stat().st_size for p in results.glob("2*/results.jsonl")):
        assert process.poll() is None, "the sweep ended by itself"
        assert time.monotonic() < until
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(timeout=60) == 130
    packed = build.folder / "build" / "shards" / "1.tar.gz"
    subprocess.run(["tar", "-xzf", packed, "-C", build.folder], check=True)
    assert json.loads((build.folder / "run.json").read_text())["state"] == "interrupted"
    assert (build.folder / "results.jsonl").read_bytes()
