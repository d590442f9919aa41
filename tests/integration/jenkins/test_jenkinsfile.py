"""What the Jenkinsfile does, and that a mistake in it does not go unnoticed."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.jenkins.conftest import ROOT, SUMMARY, Answers, Scenarios, jenkinsfile

pytestmark = pytest.mark.matrix

JENKINSFILE = jenkinsfile("compilewatch")
STAGES = ["Set up", "Inputs", "Pull", "Sweep", "Neuron", "Merge", "Compare", "Fix", "Publish"]
ARCHIVED = ["archiveArtifacts", "junit", "publishHTML"]


def rule(match: str, **what: Any) -> dict[str, Any]:
    return {"rules": [{"match": match, **what}]}


SCENARIOS: dict[str, dict[str, Any]] = (
    {
        "as it is": {},
        "four shards": {"params": {"SHARDS": "4"}},
        "a shard fails": rule("sweep.sh 2", status=2),
        "an agent is lost once": rule("sweep.sh 2", lost=True, times=1),
        "an agent comes back without its script": rule("sweep.sh 2", status=-1, times=1),
        "an agent is lost in its set-up": rule("setup.sh agent", status=-1, times=1),
        "an agent comes back without it each time": rule("sweep.sh 2", status=-1),
        "an agent is lost in two ways": {
            "rules": [
                {"match": "sweep.sh 2", "lost": True, "times": 1},
                {"match": "sweep.sh 2", "status": -1, "times": 1},
            ]
        },
        "the controller restarts": {"restarted": True},
        "an agent is lost always": rule("sweep.sh 2", lost=True),
        "regressions": rule("compare.sh", status=1),
        "a comparison fails": rule("compare.sh", status=2),
        "publishing fails": rule("publish.sh", status=3),
        "archiving fails": rule("archive.sh", status=2),
        "no clone": rule("checkout"),
        "no baseline": rule("inputs.sh", status=2),
        "no mail server": {"earlier": ["FAILURE"], **rule("mail")},
        "plans differ": rule("merge.sh", status=2),
        "trainium": {"params": {"TRAINIUM": True}},
        "trainium does not start": {"params": {"TRAINIUM": True}, **rule("trainium_up", status=2)},
        "trainium is not reachable": {"params": {"TRAINIUM": True}, "offline": ["trainium"]},
        "neuron fails": {"params": {"TRAINIUM": True}, **rule("neuron.sh", status=2)},
        "neuron is incomplete": {
            "params": {"TRAINIUM": True},
            "stdout": json.dumps(
                SUMMARY | {"text": "Trainium: no results", "trainium": "no results"}
            ),
        },
        "neuron is lost": {"params": {"TRAINIUM": True}, **rule("neuron.sh", lost=True)},
        "fix": {"params": {"FIX": "30"}},
        "fix, and regressions": {"params": {"FIX": "30"}, **rule("compare.sh", status=1)},
        "fix fails": {"params": {"FIX": "30"}, **rule("fix.sh", status=2)},
        "abort in fix.sh": {"params": {"FIX": "30"}, **rule("fix.sh", abort=True)},
        "a shard fails, and regressions": {
            "rules": [{"match": "sweep.sh 1", "status": 2}, {"match": "compare.sh", "status": 1}]
        },
    }
    | {
        f"after {', '.join(earlier)}": {"earlier": earlier, **(rule("compare.sh", status=status))}
        for earlier, status in (
            (["UNSTABLE", "FAILURE"], 0),
            (["SUCCESS"], 0),
            (["FAILURE"], 0),
            (["FAILURE", "UNSTABLE"], 1),
            (["ABORTED", "NOT_BUILT", "FAILURE"], 0),
            (["ABORTED"], 0),
        )
    }
    | {
        f"abort in {script}": {"params": {"TRAINIUM": True}, **rule(script, abort=True)}
        for script in (
            *("setup.sh", "pull.sh", "inputs.sh", "sweep.sh 1", "sweep.sh 2", "trainium_up.sh"),
            *("neuron.sh", "merge.sh", "compare.sh", "publish.sh"),
        )
    }
)

MUTATIONS: dict[str, tuple[str, str, str]] = {
    "a step": ("stash name: 'pulled'", "stsh name: 'pulled'", "unknown step: stsh"),
    "a step in post": ("junit testResults", "jnit testResults", "unknown step: jnit"),
    "a directive": ("agent none", "agnet none", "unknown directive in pipeline: agnet"),
    "a property of a build": ("previousCompletedBuild", "previousComplete", "a build has no"),
    "a condition of retry": ("nonresumable()", "nonresumeable()", "nonresumeable"),
    "a condition of post": ("        always {", "        alwayz {", "in post: alwayz"),
    "a condition of when": ("beforeAgent true", "beforeAgents true", "in when: beforeAgents"),
    "a parameter of a step": ("allowEmpty: true", "alowEmpty: true", "stash takes no alowEmpty"),
    "a unit": ("unit: 'HOURS'", "unit: 'HOUR'", "no unit of time: HOUR"),
    "a result": ("buildResult: 'FAILURE'", "buildResult: 'FAILED'", "no result FAILED"),
    "a label of a shard": ("sweepOn('cpu'", "sweepOn('cpus'", "no agent has the label cpus"),
    "a build parameter": ("params.SHARDS", "params.SHARD", "no parameter SHARD"),
    "a function": ("script { fetch(stashed) }", "script { fecth(stashed) }", "fecth"),
    "a node that is missing": ("node('home') {", "script {", "outside"),
    "syntax": ("parallel shards", "parallel shards }", "}"),
}


@pytest.fixture(scope="module")
def answers(play: Callable[[Scenarios], Answers]) -> Answers:
    mutants: dict[str, dict[str, Any]] = {}
    for name, (before, after, _) in MUTATIONS.items():
        assert before in JENKINSFILE, f"the mutation {name!r} does not apply any more"
        mutants[f"misspelt: {name}"] = {
            "jenkinsfile": JENKINSFILE.replace(before, after),
            "earlier": ["FAILURE"],
        }
    for name in STAGES:
        mutants[f"without {name}"] = {
            "jenkinsfile": without(rf"stage\('{name}'\)"),
            "params": {"TRAINIUM": True, "FIX": "30"},
        }
    mutants["without post"] = {"jenkinsfile": without(r"(?<=\n)    post")}
    mutants["without down"] = {
        "jenkinsfile": without(r"cleanup"),
        "params": {"TRAINIUM": True},
    }
    return play(SCENARIOS | mutants)


def without(head: str) -> str:
    """The Jenkinsfile less the block that begins so."""
    found = re.search(head + r" \{", JENKINSFILE)
    assert found, head
    depth, end = 1, found.end()
    while depth:
        depth += {"{": 1, "}": -1}.get(JENKINSFILE[end], 0)
        end += 1
    return JENKINSFILE[: found.start()] + JENKINSFILE[end:]


def scripts(answer: dict[str, Any]) -> list[str]:
    """The stage scripts that ran, in order, in short."""
    run = [event["script"] for event in answer["trace"] if event["event"] == "sh"]
    assert all(script.startswith("scripts/stages/") for script in run)
    return [script.removeprefix("scripts/stages/").replace(".sh", "") for script in run]


def events(answer: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [event for event in answer["trace"] if event["event"] == kind]


def problems(answer: dict[str, Any]) -> list[str]:
    """What every build must do, whatever happens in it."""
    found = []
    if answer["error"]:
        return [str(answer["error"])]
    names = [event["name"] for event in events(answer, "stage")]
    for name in STAGES:
        known = names + [event["stage"] for event in answer["trace"] if "stage" in event]
        if name not in known:
            found.append(f"no stage {name}")
    if any(name not in [event["event"] for event in answer["trace"]] for name in ARCHIVED):
        found.append("not archived")
    ran = scripts(answer)
    mails = [event["subject"] for event in events(answer, "mail")]
    if ("compilewatch: build 7 failed" in mails) is not (answer["result"] == "FAILURE"):
        found.append("no mail, or one too many")
    if "trainium_up" in ran and "trainium_down" not in ran[ran.index("trainium_up") :]:
        found.append("Trainium goes on")
    return found


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name != "archiving fails"])
def test_every_build_archives_notifies_and_stops_what_it_started(
    name: str, answers: Answers
) -> None:
    assert problems(answers[name]) == []


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_misspelling_is_found(name: str, answers: Answers) -> None:
    assert MUTATIONS[name][2] in (answers[f"misspelt: {name}"]["error"] or "")


@pytest.mark.parametrize("name", [*(f"without {s}" for s in STAGES), "without post"])
def test_a_missing_block_is_found(name: str, answers: Answers) -> None:
    assert problems(answers[name]) != []


def test_a_forgotten_shutdown_is_found(answers: Answers) -> None:
    assert problems(answers["without down"]) == ["Trainium goes on"]


def test_the_stages_of_a_green_build(answers: Answers) -> None:
    answer = answers["as it is"]
    assert answer["result"] == "SUCCESS"
    assert scripts(answer) == [
        *("setup", "inputs", "pull", "setup agent", "sweep 1", "setup agent", "sweep 2"),
        *("merge", "compare", "publish", "archive", "summary"),
    ]
    assert [event["stage"] for event in events(answer, "not asked for")] == ["Neuron", "Fix"]
    (pipeline,) = events(answer, "pipeline")
    assert pipeline["options"] == ["timeout", "timestamps"]
    assert events(answer, "junit")[0]["skipMarkingBuildUnstable"] is True
    assert events(answer, "archiveArtifacts")[0]["fingerprint"] is True


def test_make_pipeline_runs_the_stages_in_the_order_of_jenkins(answers: Answers) -> None:
    text = (ROOT / "scripts" / "pipeline.sh").read_text(encoding="utf-8")
    by_hand = re.findall(r"^ *(?:stage|must) \"?([A-Z][a-z]+(?: up)?)", text, re.MULTILINE)
    assert by_hand.pop(0) == "Archive"  # defined first, as it runs however the rest ends
    assert by_hand == STAGES


def test_only_sweeps_leave_their_agent(answers: Answers) -> None:
    for answer in (answers["four shards"], answers["trainium"]):
        for event in events(answer, "sh"):
            script = event["script"].split("/")[-1]
            away = {"sweep.sh": "cpu", "neuron.sh": "trainium"}.get(script.split()[0])
            if script == "setup.sh agent":
                assert event["label"] in ("cpu", "trainium")
            else:
                assert event["label"] == (away or "home"), script
        assert {e["label"] for e in events(answer, "node")} <= {"home", "cpu", "trainium"}


@pytest.mark.parametrize(("name", "count"), [("as it is", 2), ("four shards", 4)])
def test_what_shards_leave_is_joined_in_one_place(name: str, count: int, answers: Answers) -> None:
    answer = answers[name]
    wanted = [f"shard-{part}" for part in range(1, count + 1)]
    stashed = {e["name"]: e["includes"] for e in events(answer, "stash")}
    assert stashed.pop("pulled") == "inputs/pulled/**"
    assert stashed == {n: f"build/shards/{n.removeprefix('shard-')}.tar.gz" for n in wanted}
    merge = next(i for i, e in enumerate(answer["trace"]) if "merge.sh" in e.get("script", ""))
    fetched = [e["name"] for e in answer["trace"][:merge] if e["event"] == "unstash"]
    assert [name for name in fetched if name != "pulled"] == wanted


RESULTS = {
    **dict.fromkeys(("regressions", "fix, and regressions", "after FAILURE, UNSTABLE"), "UNSTABLE"),
    **dict.fromkeys(
        [
            *("a shard fails", "a shard fails, and regressions", "an agent is lost always"),
            *("an agent comes back without it each time", "a comparison fails"),
            *("publishing fails", "archiving fails", "no clone", "no baseline", "plans differ"),
        ],
        "FAILURE",
    ),
    **{name: "ABORTED" for name in SCENARIOS if name.startswith("abort")},
}
"""All others are green. (In Jenkins, the mail "works again" of a green build once made it fail.)"""


@pytest.mark.parametrize("name", SCENARIOS)
def test_how_a_build_ends(name: str, answers: Answers) -> None:
    assert answers[name]["error"] is None
    assert answers[name]["result"] == RESULTS.get(name, "SUCCESS")


def test_a_failed_shard_does_not_keep_the_others_from_being_published(answers: Answers) -> None:
    ran = scripts(answers["a shard fails"])
    assert ran[-5:] == ["merge", "compare", "publish", "archive", "summary"]
    # Its archive may hold what it answered before it failed.
    assert {e["name"] for e in events(answers["a shard fails"], "stash")} >= {"shard-1", "shard-2"}


def test_a_lost_agent_costs_its_shard_another_try(answers: Answers) -> None:
    assert scripts(answers["an agent is lost once"]).count("sweep 2") == 2
    assert scripts(answers["an agent is lost always"]).count("sweep 2") == 3
    assert scripts(answers["an agent comes back without its script"]).count("sweep 2") == 2
    assert scripts(answers["an agent comes back without it each time"]).count("sweep 2") == 3
    assert scripts(answers["an agent is lost in two ways"]).count("sweep 2") == 3
    assert scripts(answers["an agent is lost in its set-up"]).count("setup agent") == 3
    assert "merge" in scripts(answers["an agent is lost always"])
    assert scripts(answers["a shard fails"]).count("sweep 2") == 1


def test_after_a_restart_of_the_controller_no_stage_checks_out_another_commit(
    answers: Answers,
) -> None:
    for name in ("as it is", "the controller restarts"):
        labels = [event["label"] for event in events(answers[name], "checkout")]
        # The first one says which commit; the shards then go to that one (REVISION).
        assert labels == ["home", "cpu", "cpu"]
        first = next(e for e in answers[name]["trace"] if e["event"] == "sh")
        assert first["script"] == "scripts/stages/setup.sh"


def test_the_report_is_that_of_the_last_build_with_one(answers: Answers) -> None:
    (report,) = events(answers["as it is"], "publishHTML")
    assert report["keepAll"] is True
    # Otherwise the job's link leads to the build that runs, which has no report yet: HTTP 500.
    assert report["alwaysLinkToLastBuild"] is False


def mails(answer: dict[str, Any]) -> list[str]:
    return [e["subject"].removeprefix("compilewatch: build 7 ") for e in events(answer, "mail")]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("as it is", []),
        ("regressions", []),
        ("a shard fails", ["failed"]),
        ("archiving fails", ["failed"]),
        ("after UNSTABLE, FAILURE", []),
        ("after SUCCESS", []),
        ("after FAILURE", ["works again"]),
        ("after FAILURE, UNSTABLE", ["works again"]),
        ("after ABORTED, NOT_BUILT, FAILURE", ["works again"]),
        ("after ABORTED", []),
        ("neuron is incomplete", ["has no complete results of Trainium"]),
        ("abort in merge.sh", []),
    ],
)
def test_who_is_notified_of_what(name: str, told: list[str], answers: Answers) -> None:
    assert mails(answers[name]) == told
    for mail in events(answers[name], "mail"):
        assert mail["body"].endswith("artifacts: http://jenkins/7/")


def test_a_build_says_on_its_page_and_in_mails_what_it_found(answers: Answers) -> None:
    for name in ("as it is", "a shard fails", "abort in merge.sh"):
        assert [e["text"] for e in events(answers[name], "description")] == [SUMMARY["html"]]
    (mail,) = events(answers["a shard fails"], "mail")
    assert mail["body"].startswith(SUMMARY["text"])
    (mail,) = events(answers["neuron is incomplete"], "mail")
    assert mail["body"].startswith("Trainium: no results")
    (mail,) = events(answers["archiving fails"], "mail")
    assert mail["body"].startswith("No summary could be made")


def test_trainium_is_used_only_if_it_is_reachable(answers: Answers) -> None:
    assert "trainium_up" not in scripts(answers["as it is"])
    for name in ("trainium does not start", "trainium is not reachable"):
        assert "neuron" not in scripts(answers[name])
        assert "publish" in scripts(answers[name])
    ran = scripts(answers["trainium"])
    assert ran.index("trainium_up") < ran.index("neuron") < ran.index("trainium_down")
    fetched = [e["name"] for e in events(answers["trainium"], "unstash")]
    assert "neuron" in fetched


@pytest.mark.parametrize("name", ["fix", "fix, and regressions", "fix fails"])
def test_fixes_are_searched_before_the_run_is_published(name: str, answers: Answers) -> None:
    assert "fix" not in scripts(answers["as it is"])
    ran = scripts(answers[name])
    assert ran[-5:] == ["compare", "fix", "publish", "archive", "summary"]


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name.startswith("abort")])
def test_an_aborted_build_archives_what_is_finished(name: str, answers: Answers) -> None:
    answer = answers[name]
    script = name.removeprefix("abort in ").replace(".sh", "")
    ran = scripts(answer)
    after = ran[ran.index(script) + 1 :]
    assert [s for s in after if s not in ("setup agent", "sweep 2", "trainium_down")] == [
        "archive",
        "summary",
    ]
    if script.startswith("sweep"):
        fetched = [e["name"] for e in events(answer, "unstash")]
        assert fetched[-2:] == ["shard-1", "shard-2"]


def test_every_script_of_a_stage_exists_and_can_be_started() -> None:
    named = set(re.findall(r"scripts/stages/[a-z_]+\.sh", JENKINSFILE))
    by_hand = (ROOT / "scripts" / "pipeline.sh").read_text(encoding="utf-8")
    for name in named:
        assert os.access(ROOT / name, os.X_OK), name
    assert named - {"scripts/stages/trainium_up.sh"} <= set(
        re.findall(r"scripts/stages/[a-z_]+\.sh", by_hand)
    )


def test_the_linter_finds_what_is_wrong(groovy_lint: Path, tmp_path: Path) -> None:
    """That it finds nothing in ours is what `make quality` runs it for."""
    broken = tmp_path / "Jenkinsfile"
    broken.write_text("pipeline {\n  agent none\n  stages {\n")
    done = subprocess.run(
        [ROOT / "scripts" / "groovy_lint.sh", broken], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
