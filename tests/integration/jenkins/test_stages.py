"""The stages' scripts, by hand, on stored runs: what they leave, and what they say in trouble."""

import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from compilewatch.records import Request, Result, Shard
from tests import factories
from tests.fake_launcher import FakeLauncher
from tests.integration.jenkins.conftest import ROOT, Job
from tests.serving import serving
from tests.sweeping import breaking, run_sweep, store

SPECS = [factories.spec(f"M{number}") for number in range(12)]
Answer = Callable[[Request], Result]
Stage = Callable[..., subprocess.CompletedProcess[str]]


def run(
    command: Sequence[str | Path], variables: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


def environ(folder: Path, **variables: str) -> dict[str, str]:
    """Of a stage: its folders are in `folder`, and nothing is set but what a test sets."""
    bare = {k: v for k, v in os.environ.items() if not k.startswith(("COMPILEWATCH_", "BUILD_"))}
    return bare | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "PIPELINE_DIR": str(folder / "build"),
        "COMPILEWATCH_OUTPUT_DIR": str(folder / "outputs"),
        "NO_COLOR": "1",
        **variables,
    }


def stand_in(folder: Path, lines: str) -> Path:
    """Return a `compilewatch` that runs these lines of shell, and then the real one."""
    program = folder / "bin" / "compilewatch"
    program.parent.mkdir()
    real = Path(sys.executable).with_name("compilewatch")
    program.write_text(f'#!/bin/sh\n{lines}\nexec {real} "$@"\n')
    program.chmod(0o755)
    return program


def with_program(
    program: Path, name: str, variables: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a stage with this program; the stage itself puts .venv/bin of the checkout first."""
    text = (ROOT / "scripts" / "stages" / f"{name}.sh").read_text()
    head = f'. "{ROOT}/scripts/stages/common.sh"\nPATH={program.parent}:$PATH\n'
    return run(["bash", "-c", text.replace('. "$(dirname "$0")/common.sh"\n', head)], variables)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """Run a stage's script in a folder that the stage Set up has begun."""
    (tmp_path / "build" / "shards").mkdir(parents=True)
    (tmp_path / "build" / "owner").write_text("by hand\n")

    def stage(name: str, **variables: str) -> subprocess.CompletedProcess[str]:
        script = ROOT / "scripts" / "stages" / f"{name}.sh"
        return run([script], environ(tmp_path, **variables))

    return stage


def leave_shard(folder: Path, index: int, count: int = 2, **given: Any) -> Path:
    """Sweep a part without processes and pack it, as the stage Sweep does."""
    agent = folder / f"agent-{index}"
    given.setdefault("specs", SPECS)
    run = run_sweep(agent, shard=Shard(index=index, count=count), fresh=True, **given).run
    path = folder / "build" / "shards" / f"{index}.tar.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        archive.add(store(agent).root / run.id, arcname=".")
    return path


def summary(stage: Stage, **variables: str) -> dict[str, str]:
    done = stage("summary", **variables)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


def leave_run(folder: Path, stage: Stage, launcher: FakeLauncher | None = None) -> str:
    """Leave both shards of a run and merge them; return the id of the run."""
    for index in (1, 2):
        leave_shard(folder, index, launcher=launcher)
    done = stage("merge")
    assert done.returncode == 0, done.stderr
    (run,) = merged(folder)
    return run


def worse() -> FakeLauncher:
    return FakeLauncher(answers=breaking({"M3": [factories.graph_break()]}))


def merged(folder: Path) -> list[str]:
    return (folder / "build" / "runs").read_text().split()


def archived(folder: Path) -> set[str]:
    """The archive's files, without those of the report and with `RUN` for ids."""
    root = folder / "build" / "archive"
    found = {str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()}
    for run in merged(folder) if (folder / "build" / "runs").exists() else []:
        found = {name.replace(run, "RUN") for name in found}
    return {name for name in found if "report/" not in name or name.endswith("/index.html")}


def test_shards_become_one_run_that_is_archived(tmp_path: Path, stage: Stage) -> None:
    run = leave_run(tmp_path, stage)
    assert len(store(tmp_path).open(run).results()) == len(SPECS)
    assert stage("compare").returncode == 0
    assert "no service is set" in stage("publish").stdout
    assert stage("archive").returncode == 0
    assert archived(tmp_path) >= {
        *("SHA256SUMS", "junit/RUN.xml", "report/index.html", "runs/RUN/report/index.html"),
        *("runs/RUN/run.json", "runs/RUN/results.jsonl", "runs/RUN/metrics.prom"),
        *("runs/RUN/junit.xml", "runs/RUN/logs/RUN.jsonl"),
    }
    checked = subprocess.run(
        ["sha256sum", "--check", "--quiet", "SHA256SUMS"],
        cwd=tmp_path / "build" / "archive",
        check=False,
    )
    assert checked.returncode == 0


@pytest.mark.matrix
def test_a_regression_is_found_and_its_state_is_a_parameter(tmp_path: Path, stage: Stage) -> None:
    leave_run(tmp_path, stage)
    run = leave_run(tmp_path, stage, worse())
    done = stage("compare")
    assert done.returncode == 1
    assert "has regressions compared with" in done.stdout
    assert stage("compare", FAIL_ON_REGRESSION="false").returncode == 0
    report = json.loads((tmp_path / "build" / "compare" / f"{run}.json").read_text())
    assert [c["model"] for c in report["changes"] if c["kind"] == "regression"] == ["M3"]


def test_a_missing_or_torn_shard_is_named_and_the_rest_archived_but_not_published(
    tmp_path: Path, stage: Stage
) -> None:
    leave_shard(tmp_path, 1)
    path = leave_shard(tmp_path, 2)
    path.write_bytes(path.read_bytes()[:200])
    done = stage("merge")
    assert done.returncode == 0
    assert "2.tar.gz cannot be read and is ignored" in done.stderr
    assert "merge it again with the missing shards 2/2" in done.stdout
    assert summary(stage)["text"].endswith("without graph breaks, shards are missing: 2/2")
    assert summary(stage, BUILD_TAG="jenkins-compilewatch-8")["text"].startswith("No results")
    refused = stage("publish", COMPILEWATCH_PUSHGATEWAY_URL="http://127.0.0.1:1")
    assert refused.returncode == 0
    assert "is not published, it lacks shards (2/2)" in refused.stdout
    assert stage("archive").returncode == 0
    assert "runs/RUN/results.jsonl" in archived(tmp_path)


def test_no_shard_left_results(tmp_path: Path, stage: Stage) -> None:
    done = stage("merge")
    assert done.returncode == 2
    assert done.stderr == "pipeline: no shard has results: the stage Sweep shows the reason\n"
    assert summary(stage)["text"] == "No results: the log shows why."
    for name in ("compare", "publish"):
        assert stage(name).returncode == 2
    assert stage("archive").returncode == 0
    assert archived(tmp_path) == {"SHA256SUMS"}


def test_shards_of_two_plans_are_archived_as_they_are(tmp_path: Path, stage: Stage) -> None:
    leave_shard(tmp_path, 1)
    leave_shard(tmp_path, 2, specs=SPECS[:5])
    done = stage("merge")
    assert done.returncode == 2
    assert "are of different plans" in done.stderr
    done = stage("archive")
    assert done.returncode == 0
    assert "could not be joined" in done.stdout
    assert {"shards/1.tar.gz", "shards/2.tar.gz"} <= archived(tmp_path)


def test_an_aborted_build_archives_what_its_shards_left(tmp_path: Path, stage: Stage) -> None:
    leave_shard(tmp_path, 2)
    # Nothing of an earlier build is archived.
    other = stage("archive", BUILD_TAG="jenkins-compilewatch-8")
    assert (other.returncode, "ended before its stage Set up" in other.stdout) == (0, True)
    assert not (tmp_path / "build" / "archive").exists()
    assert stage("archive").returncode == 0
    assert "runs/RUN/results.jsonl" in archived(tmp_path)
    (run,) = merged(tmp_path)
    assert store(tmp_path).open(run).run.missing_shards == ("1/2",)


def test_a_baseline_that_does_not_exist_is_rejected_before_the_sweep(
    tmp_path: Path, stage: Stage
) -> None:
    done = stage("inputs", BASELINE="20200101-000000-0000", SOURCE="manifest")
    assert done.returncode == 2
    assert "BASELINE=20200101-000000-0000: no such run here" in done.stderr
    leave_shard(tmp_path, 1)
    assert stage("merge", BASELINE="20200101-000000-0000").returncode == 2
    # A later merge, of the archive, is not kept from what is finished.
    assert stage("archive", BASELINE="auto").returncode == 0
    assert "runs/RUN/results.jsonl" in archived(tmp_path)


def test_fixes_are_searched_in_the_main_run_and_archived_with_its_report(
    tmp_path: Path, stage: Stage
) -> None:
    """With a stand-in for the search, which starts workers; the report is the real one."""
    run = leave_run(tmp_path, stage, worse())
    program = stand_in(
        tmp_path,
        f'echo "$@" >>{tmp_path}/ran\n'
        f"case $1 in fix) echo '# script' >{tmp_path}/outputs/$3/verify.py; exit $FIXED ;; esac",
    )
    assert "FIX is empty" in with_program(program, "fix", environ(tmp_path)).stdout
    for status, said in (("1", ""), ("3", "the limit of 2 minutes has left models")):
        done = with_program(program, "fix", environ(tmp_path, FIX="2", FIXED=status))
        assert done.returncode == 0, done.stderr
        assert said in done.stdout
    done = with_program(program, "fix", environ(tmp_path, FIX="2", FIXED="2"))
    assert done.returncode == 2
    first, report, *_ = (tmp_path / "ran").read_text().splitlines()
    assert first.startswith(f"fix --all-of {run} ")
    assert "--max-seconds 120" in first
    assert report.startswith(f"report {run} ")
    assert stage("archive").returncode == 0
    assert "runs/RUN/verify.py" in archived(tmp_path)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"SHARDS": "abc"}, "SHARDS=abc is not a number of parts: use 1 or more"),
        ({"TOP": "-1"}, "TOP=-1 is not a number of models: use 1 or more, or all"),
        ({"FIX": "yes"}, "FIX=yes is not a number of minutes: use 1 or more, or leave it empty"),
        ({"ENVIRONMENTS": "default;x"}, "ENVIRONMENTS=default;x is not a list of environments"),
        ({"TARGETS": "nonsense"}, "no target 'nonsense'"),
    ],
)
def test_a_wrong_parameter_ends_the_build_before_anything_is_started(
    stage: Stage, tmp_path: Path, variables: dict[str, str], said: str
) -> None:
    done = stage("inputs", **variables)
    assert done.returncode != 0
    assert said in done.stderr
    assert len(done.stderr.splitlines()) <= 2, done.stderr
    # Neither an environment was created nor this machine examined: both take long.
    assert "doctor" not in done.stdout
    assert not (tmp_path / "outputs").exists()


@pytest.mark.matrix
@pytest.mark.parametrize("source", ["auto", "hub"])
def test_the_parameters_of_a_nightly_build_are_right(
    stage: Stage, tmp_path: Path, jobs: dict[str, Job], source: str
) -> None:
    """With a stand-in for the doctor and for the models' inputs, which start workers."""
    program = stand_in(tmp_path, 'case $1 in doctor | inputs) echo "$@"; exit ;; esac')
    defaults = jobs["compilewatch"].defaults.items()
    given = {n: str(v).lower() if isinstance(v, bool) else v for n, v in defaults}
    variables = {**given, "SOURCE": source, "SHARDS": "3", "TOP": "7"}
    done = with_program(program, "inputs", environ(tmp_path, **variables))
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("--dry-run: nothing is evaluated\ndoctor\ninputs BertModel\n")
    assert "as part 1/3" in done.stdout


def test_a_hub_that_fails_costs_nothing_where_there_is_a_list(tmp_path: Path, stage: Stage) -> None:
    assert "nothing to pull" in stage("pull", SOURCE="library").stdout
    # A Hub that has nothing: one that does not answer at all is asked again and again.
    with serving(SimpleHTTPRequestHandler) as url:
        given = {
            "SOURCE": "hub",
            "HF_ENDPOINT": url,
            "COMPILEWATCH_PULLED_DIR": str(tmp_path / "pulled"),
        }
        done = stage("pull", **given)
        assert done.returncode == 2
        assert "there is no earlier list" in done.stderr
        (tmp_path / "pulled").mkdir()
        (tmp_path / "pulled" / "models.toml").write_text("schema_version = 1\n")
        assert "uses the list as it is" in stage("pull", **given).stdout


def test_a_full_disk_is_said_and_leaves_no_half_archive(tmp_path: Path) -> None:
    """A limit on a file's size stands for the disk: tar meets the error at the same place."""
    stored = run_sweep(tmp_path, specs=SPECS).run
    limited = '. "$0"; trap "" XFSZ; ulimit -f 1; pack "$1" "$2"'
    common = ROOT / "scripts" / "stages" / "common.sh"
    packed = tmp_path / "build" / "1.tar.gz"
    folder = store(tmp_path).root / stored.id
    done = run(["bash", "-c", limited, common, folder, packed], environ(tmp_path))
    assert done.returncode == 2
    assert "is the disk full?" in done.stderr
    assert list((tmp_path / "build").iterdir()) == []


def test_a_build_says_what_it_found_and_where_to_read_on(tmp_path: Path, stage: Stage) -> None:
    for launcher in (None, worse()):
        leave_run(tmp_path, stage, launcher)
    given = {
        "BUILD_URL": "http://jenkins/job/compilewatch/7/",
        "GRAFANA_URL": "http://grafana/",
    }
    found = summary(stage, **given)
    said = "11 of 12 without graph breaks, 1 regression: M3"
    first, report, dashboards = found["text"].splitlines()
    assert (first, found["trainium"]) == (said, "")
    assert report == "report: http://jenkins/job/compilewatch/7/Report/"
    # At the time of the run, not at that of the reader.
    assert re.fullmatch(
        r"dashboards: http://grafana/d/compilewatch-overview\?from=\d{13}&to=\d{13}", dashboards
    )
    assert found["html"].startswith(
        f'{said} · <a href="http://jenkins/job/compilewatch/7/Report/">'
    )
    assert "&amp;to=" in found["html"]
    assert summary(stage)["html"] == said


@pytest.mark.matrix
def test_a_build_that_could_not_publish_says_why(tmp_path: Path, stage: Stage) -> None:
    leave_run(tmp_path, stage)
    nobody = "http://127.0.0.1:9"
    failed = stage(
        "publish", COMPILEWATCH_PUSHGATEWAY_URL=nobody, COMPILEWATCH_PUBLISH_RETRY_SECONDS="1"
    )
    assert failed.returncode != 0
    last = failed.stderr.splitlines()[-1].removeprefix("compilewatch: ")
    assert nobody in last
    found = summary(stage)
    assert found["text"].splitlines()[1:] == [f"Publish: {last}"]
    # The next build that publishes has nothing to say about it.
    assert stage("publish").returncode == 0
    assert "Publish" not in summary(stage)["text"]


def test_a_problem_with_trainium_is_part_of_what_a_build_found(
    tmp_path: Path, stage: Stage
) -> None:
    done = stage("trainium_up", AWS_CONFIG_FILE="/none", AWS_EC2_METADATA_DISABLED="true")
    assert done.returncode != 0
    assert "AWS" in done.stderr
    leave_run(tmp_path, stage)
    found = summary(stage, TRAINIUM="true")
    reason = done.stderr.strip().splitlines()[-1]
    assert found["trainium"] == f"no results: {reason}"
    assert f"Trainium: no results: {reason}" in found["text"].splitlines()
    assert summary(stage)["trainium"] == ""
    (tmp_path / "build" / "trainium.problem").unlink()
    assert "the log of the stage Neuron says why" in summary(stage, TRAINIUM="true")["trainium"]


@pytest.mark.matrix
def test_a_preflight_of_papers_leaves_what_it_found(tmp_path: Path, stage: Stage) -> None:
    done = stage("papers_preflight", PROVIDER="bedrock", AWS_EC2_METADATA_DISABLED="true")
    assert done.returncode == 1
    left = (tmp_path / "build" / "papers" / "preflight.txt").read_text()
    assert left == done.stdout
    assert "model:   " in left


@pytest.mark.matrix
@pytest.mark.torch
def test_an_aborted_sweep_packs_its_results(tmp_path: Path) -> None:
    """SIGTERM to every process of the stage, as Jenkins does it."""
    process = subprocess.Popen(
        [ROOT / "scripts" / "stages" / "sweep.sh", "1"],
        env=environ(
            tmp_path, SOURCE="library", FAMILIES="bert,gpt2,t5,bart", SHARDS="1", FRESH="true"
        )
        | {"COMPILEWATCH_JOBS": "1"},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    results = tmp_path / "build" / "sweeps"
    until = time.monotonic() + 120
    while not any(p.stat().st_size for p in results.glob("2*/results.jsonl")):
        assert process.poll() is None, "the sweep ended by itself"
        assert time.monotonic() < until
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(timeout=60) == 130
    with tarfile.open(tmp_path / "build" / "shards" / "1.tar.gz") as archive:
        file = archive.extractfile("./run.json")
        assert file is not None
        assert json.load(file)["state"] == "interrupted"
        answers = archive.extractfile("./results.jsonl")
        assert answers is not None
        assert answers.read()
