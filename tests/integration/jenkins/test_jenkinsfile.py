"""What the two Jenkinsfiles do, and that a mistake in one does not go unnoticed."""

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.jenkins.conftest import ROOT, SUMMARY, Answers, jenkinsfile

pytestmark = pytest.mark.matrix

JENKINSFILE, PAPERS = jenkinsfile("compilewatch"), jenkinsfile("papers")
STAGES = ["Set up", "Inputs", "Pull", "Sweep", "Merge", "Neuron", "Compare", "Fix", "Publish"]
TRAINIUM = {"params": {"TRAINIUM": True}}
FIX = {"params": {"FIX": "30"}}
NO_RESULTS = SUMMARY | {"text": "Trainium: no results", "trainium": "no results"}


def rule(match: str, **what: Any) -> dict[str, Any]:
    return {"rules": [{"match": match, **what}]}


def both(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    return {"rules": first["rules"] + second["rules"]}


WORSE = rule("compare.sh", status=1)
GREEN, UNSTABLE, FAILED = ("SUCCESS", ""), ("UNSTABLE", ""), ("FAILURE", "failed")
WORKS = ("SUCCESS", "works again")
Builds = dict[str, tuple[dict[str, Any], tuple[str, str]]]

BUILDS: Builds = {
    "as it is": ({}, GREEN),
    "four shards": ({"params": {"SHARDS": "4"}}, GREEN),
    "a shard fails": (rule("sweep.sh 2", status=2), FAILED),
    "a shard fails, and regressions": (both(rule("sweep.sh 1", status=2), WORSE), FAILED),
    "an agent is lost once": (rule("sweep.sh 2", lost=True, times=1), GREEN),
    "an agent comes back without its script": (rule("sweep.sh 2", status=-1, times=1), GREEN),
    "an agent is lost in its set-up": (rule("setup.sh agent", status=-1, times=1), GREEN),
    "an agent is lost in two ways": (
        both(rule("sweep.sh 2", lost=True, times=1), rule("sweep.sh 2", status=-1, times=1)),
        GREEN,
    ),
    "an agent comes back without it each time": (rule("sweep.sh 2", status=-1), FAILED),
    "an agent is lost always": (rule("sweep.sh 2", lost=True), FAILED),
    "the controller restarts": ({"restarted": True}, GREEN),
    "regressions": (WORSE, UNSTABLE),
    "a comparison fails": (rule("compare.sh", status=2), FAILED),
    "publishing fails": (rule("publish.sh", status=3), FAILED),
    "archiving fails": (rule("archive.sh", status=2), FAILED),
    "no clone": (rule("checkout"), FAILED),
    "no baseline": (rule("inputs.sh", status=2), FAILED),
    "plans differ": (rule("merge.sh", status=2), FAILED),
    # In Jenkins, the mail "works again" of a green build once made it fail.
    "no mail server": ({"earlier": ["FAILURE"], **rule("mail")}, GREEN),
    "trainium": (TRAINIUM, GREEN),
    "trainium does not start": (TRAINIUM | rule("trainium_up", status=2), GREEN),
    "trainium is not reachable": (TRAINIUM | {"offline": ["trainium"]}, GREEN),
    "neuron fails": (TRAINIUM | rule("neuron.sh", status=2), GREEN),
    "neuron is lost": (TRAINIUM | rule("neuron.sh", lost=True), GREEN),
    "neuron is incomplete": (
        TRAINIUM | {"stdout": json.dumps(NO_RESULTS)},
        ("SUCCESS", "has no complete results of Trainium"),
    ),
    "fix": (FIX, GREEN),
    "fix, and regressions": (FIX | WORSE, UNSTABLE),
    "fix fails": (FIX | rule("fix.sh", status=2), GREEN),
    "after UNSTABLE, FAILURE": ({"earlier": ["UNSTABLE", "FAILURE"]}, GREEN),
    "after SUCCESS": ({"earlier": ["SUCCESS"]}, GREEN),
    "after FAILURE": ({"earlier": ["FAILURE"]}, WORKS),
    "after FAILURE, worse": (
        {"earlier": ["FAILURE", "UNSTABLE"], **WORSE},
        ("UNSTABLE", "works again"),
    ),
    "after ABORTED, FAILURE": ({"earlier": ["ABORTED", "NOT_BUILT", "FAILURE"]}, WORKS),
    "after ABORTED": ({"earlier": ["ABORTED"]}, GREEN),
    "abort in fix.sh": (FIX | rule("fix.sh", abort=True), ("ABORTED", "")),
    **{
        f"abort in {script}": (TRAINIUM | rule(script, abort=True), ("ABORTED", ""))
        for script in (
            *("setup.sh", "pull.sh", "inputs.sh", "sweep.sh 1", "sweep.sh 2", "trainium_up.sh"),
            *("neuron.sh", "merge.sh", "compare.sh", "publish.sh"),
        )
    },
}
"""Name -> what is given, and how the build ends with the mail that it sends."""

OF_PAPERS: Builds = {
    "as it is": ({}, GREEN),
    "preflight fails": (rule("papers_preflight", status=1), FAILED),
    "set-up fails": (rule("setup.sh", status=1), FAILED),
    "a paper fails": (rule("papers_run", status=1), UNSTABLE),
    "publishing fails": (rule("papers_publish", status=2), FAILED),
    "abort": (rule("papers_run", abort=True), ("ABORTED", "")),
    "after a failure": ({"earlier": ["ABORTED", "FAILURE"]}, WORKS),
    "no mail server": ({"earlier": ["FAILURE"], **rule("mail")}, GREEN),
    "after a paper failed": ({"earlier": ["UNSTABLE", "FAILURE"]}, GREEN),
}
MISSPELT = {
    "stash name: 'pulled'": ("stsh name: 'pulled'", "unknown step: stsh"),
    "agent none": ("agnet none", "unknown directive in pipeline: agnet"),
    "allowEmpty: true": ("alowEmpty: true", "stash takes no alowEmpty"),
    "params.SHARDS": ("params.SHARD", "no parameter SHARD"),
    "        always {": ("        alwayz {", "in post: alwayz"),
    "sweepOn('cpu'": ("sweepOn('cpus'", "no agent has the label cpus"),
}
"""What the harness is to find: a step, a directive, a parameter, a condition, a label."""


@pytest.fixture(scope="module")
def answers(play: Callable[..., Answers]) -> Answers:
    assert all(JENKINSFILE.count(before) for before in MISSPELT)
    mutants = {
        before: {"jenkinsfile": JENKINSFILE.replace(before, after), "earlier": ["FAILURE"]}
        for before, (after, _) in MISSPELT.items()
    }
    down = re.sub(r"cleanup \{.*?\n {16}\}", "", JENKINSFILE, flags=re.DOTALL)
    assert down != JENKINSFILE
    forgotten = {"without down": {**TRAINIUM, "jenkinsfile": down}}
    return play({name: given for name, (given, _) in BUILDS.items()} | mutants | forgotten)


@pytest.fixture(scope="module")
def papers(play: Callable[..., Answers]) -> Answers:
    mutant = {"misspelt": {"jenkinsfile": PAPERS.replace("archiveArtifacts", "archiveArtefacts")}}
    return play({name: given for name, (given, _) in OF_PAPERS.items()} | mutant, "papers")


def scripts(answer: dict[str, Any]) -> list[str]:
    """The stage scripts that ran, in order, in short."""
    run = [event["script"] for event in answer["trace"] if event["event"] == "sh"]
    assert all(script.startswith("scripts/stages/") for script in run)
    return [script.removeprefix("scripts/stages/").replace(".sh", "") for script in run]


def events(answer: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [event for event in answer["trace"] if event["event"] == kind]


def problems(answer: dict[str, Any]) -> list[str]:
    """What every build must do, whatever happens in it."""
    stages = {e["name"] for e in events(answer, "stage")} | {
        e["stage"] for e in answer["trace"] if "stage" in e
    }
    found = [f"no stage {name}" for name in STAGES if name not in stages]
    kinds = [event["event"] for event in answer["trace"]]
    found += [
        f"no {step}" for step in ("archiveArtifacts", "junit", "publishHTML") if step not in kinds
    ]
    ran = scripts(answer)
    if "trainium_up" in ran and "trainium_down" not in ran[ran.index("trainium_up") :]:
        found.append("Trainium goes on")
    return found


@pytest.mark.parametrize("name", BUILDS)
def test_how_a_build_ends_and_who_is_notified(name: str, answers: Answers) -> None:
    answer, (result, told) = answers[name], BUILDS[name][1]
    assert (answer["error"], answer["result"]) == (None, result)
    mails = events(answer, "mail")
    assert [mail["subject"] for mail in mails] == [f"compilewatch: build 7 {told}"] * bool(told)
    assert all(mail["body"].endswith("artifacts: http://jenkins/7/") for mail in mails)
    if name != "archiving fails":
        assert problems(answer) == []


def test_what_is_misspelt_or_forgotten_is_found(answers: Answers, papers: Answers) -> None:
    for before, (_, said) in MISSPELT.items():
        assert said in (answers[before]["error"] or ""), before
    assert problems(answers["without down"]) == ["Trainium goes on"]
    assert "unknown" in papers["misspelt"]["error"]


def test_the_stages_of_a_green_build(answers: Answers) -> None:
    answer = answers["as it is"]
    assert scripts(answer) == [
        *("setup", "inputs", "pull", "setup agent", "sweep 1", "setup agent", "sweep 2"),
        *("merge", "compare", "publish", "archive", "summary"),
    ]
    assert [event["stage"] for event in events(answer, "not asked for")] == ["Neuron", "Fix"]
    (pipeline,) = events(answer, "pipeline")
    assert pipeline["options"] == ["timeout", "timestamps"]
    assert events(answer, "junit")[0]["skipMarkingBuildUnstable"] is True
    assert events(answer, "archiveArtifacts")[0]["fingerprint"] is True
    (report,) = events(answer, "publishHTML")
    assert report["keepAll"] is True
    # Otherwise the job's link leads to the build that runs, which has no report yet: HTTP 500.
    assert report["alwaysLinkToLastBuild"] is False


def test_make_pipeline_runs_the_same_scripts_in_the_same_order() -> None:
    by_hand = (ROOT / "scripts" / "pipeline.sh").read_text(encoding="utf-8")
    stages = re.findall(r"^ *(?:stage|must) \"?([A-Z][a-z]+(?: up)?)", by_hand, re.MULTILINE)
    # The first is defined first, as it runs however the rest ends.
    assert stages == ["Archive", *STAGES]
    named = set(re.findall(r"scripts/stages/[a-z_]+\.sh", JENKINSFILE))
    assert [name for name in named if not os.access(ROOT / name, os.X_OK)] == []
    there = set(re.findall(r"scripts/stages/[a-z_]+\.sh", by_hand))
    assert named - there <= {"scripts/stages/trainium_up.sh"}


def test_only_sweeps_leave_their_agent_and_are_joined_in_one_place(answers: Answers) -> None:
    for name, count in (("four shards", 4), ("trainium", 2)):
        answer = answers[name]
        for event in events(answer, "sh"):
            script = event["script"].split("/")[-1]
            away = {"sweep.sh": "cpu", "neuron.sh": "trainium"}.get(script.split()[0])
            if script == "setup.sh agent":
                assert event["label"] in ("cpu", "trainium")
            else:
                assert event["label"] == (away or "home"), script
        assert {e["label"] for e in events(answer, "node")} <= {"home", "cpu", "trainium"}
        shards = {f"shard-{n}": f"build/shards/{n}.tar.gz" for n in range(1, count + 1)}
        stashed = {e["name"]: e["includes"] for e in events(answer, "stash")}
        assert stashed["pulled"] == "inputs/pulled/**"
        assert stashed.items() >= shards.items()
        merge = next(i for i, e in enumerate(answer["trace"]) if "merge.sh" in e.get("script", ""))
        fetched = [e["name"] for e in answer["trace"][:merge] if e["event"] == "unstash"]
        assert [name for name in fetched if name.startswith("shard")] == list(shards)


def test_a_failed_or_lost_shard_costs_neither_the_others_nor_a_restart_the_commit(
    answers: Answers,
) -> None:
    ran = scripts(answers["a shard fails"])
    assert ran[-5:] == ["merge", "compare", "publish", "archive", "summary"]
    # Its archive may hold what it answered before it failed.
    assert {e["name"] for e in events(answers["a shard fails"], "stash")} >= {"shard-1", "shard-2"}
    tries = {
        "a shard fails": 1,
        "an agent is lost once": 2,
        "an agent comes back without its script": 2,
        "an agent is lost in two ways": 3,
        "an agent comes back without it each time": 3,
        "an agent is lost always": 3,
    }
    assert {name: scripts(answers[name]).count("sweep 2") for name in tries} == tries
    assert scripts(answers["an agent is lost in its set-up"]).count("setup agent") == 3
    assert "merge" in scripts(answers["an agent is lost always"])
    for name in ("as it is", "the controller restarts"):
        # The first one says which commit; the shards then go to that one (REVISION).
        labels = [event["label"] for event in events(answers[name], "checkout")]
        assert labels == ["home", "cpu", "cpu"]
        assert scripts(answers[name])[0] == "setup"


def test_a_build_says_on_its_page_and_in_mails_what_it_found(answers: Answers) -> None:
    for name in ("as it is", "a shard fails", "abort in merge.sh"):
        assert [e["text"] for e in events(answers[name], "description")] == [SUMMARY["html"]]
    for name, text in (
        ("a shard fails", SUMMARY["text"]),
        ("neuron is incomplete", "Trainium: no results"),
        ("archiving fails", "No summary could be made"),
    ):
        (mail,) = events(answers[name], "mail")
        assert mail["body"].startswith(text)


def test_trainium_is_used_and_fixes_are_searched_where_they_are_wanted(answers: Answers) -> None:
    assert not {"trainium_up", "fix"} & set(scripts(answers["as it is"]))
    for name in ("trainium does not start", "trainium is not reachable"):
        assert "neuron" not in scripts(answers[name])
        assert "publish" in scripts(answers[name])
    ran = scripts(answers["trainium"])
    assert ran[ran.index("merge") :][:7] == [
        *("merge", "first", "trainium_up", "setup agent", "neuron", "merge neuron"),
        "trainium_down",
    ]
    assert "neuron" in [e["name"] for e in events(answers["trainium"], "unstash")]
    for name in ("fix", "fix, and regressions", "fix fails"):
        last = ["compare", "fix", "publish", "archive", "summary"]
        assert scripts(answers[name])[-5:] == last


def test_an_aborted_build_archives_what_is_finished(answers: Answers) -> None:
    for name in (name for name in BUILDS if name.startswith("abort")):
        script = name.removeprefix("abort in ").replace(".sh", "")
        ran = scripts(answers[name])
        after = ran[ran.index(script) + 1 :]
        others = ("setup agent", "sweep 2", "trainium_down")
        assert [s for s in after if s not in others] == ["archive", "summary"], name
        if script.startswith("sweep"):
            fetched = [e["name"] for e in events(answers[name], "unstash")]
            assert fetched[-2:] == ["shard-1", "shard-2"]


def test_how_a_build_of_papers_ends(papers: Answers) -> None:
    for name, (_, (result, told)) in OF_PAPERS.items():
        answer = papers[name]
        assert (answer["error"], answer["result"]) == (None, result), name
        subjects = [event["subject"] for event in events(answer, "mail")]
        assert subjects == [f"compilewatch papers: build 7 {told}"] * bool(told), name
        (archived,) = events(answer, "archiveArtifacts")
        assert archived["artifacts"] == "build/papers/**"
    ran = ["setup", "papers_preflight", "papers_run", "papers_down", "papers_publish"]
    assert scripts(papers["as it is"]) == ran
    assert scripts(papers["preflight fails"]) == ran[:2]
    assert scripts(papers["abort"]) == ran[:4]


PIPELINE = "pipeline {{\n    agent any\n    stages {{\n{stage}\n    }}\n}}\n"


def test_the_linter_accepts_the_gates_example_and_finds_what_is_wrong(
    groovy_lint: Path, tmp_path: Path
) -> None:
    """That it finds nothing in ours is what `make quality` runs it for."""
    page = (ROOT / "docs" / "gate.md").read_text(encoding="utf-8")
    (stage,) = re.findall(r"^```groovy\n(.*?)\n^```", page, re.MULTILINE | re.DOTALL)
    indented = "\n".join(f"        {line}" for line in stage.splitlines())
    path = tmp_path / "Jenkinsfile"
    for text, good in (
        (PIPELINE.format(stage=indented), True),
        ("pipeline {\n  agent none\n  stages {\n", False),
    ):
        path.write_text(text)
        command = [ROOT / "scripts" / "groovy_lint.sh", path]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode == 0) is good, done.stdout + done.stderr
