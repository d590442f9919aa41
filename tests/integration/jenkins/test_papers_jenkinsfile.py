"""What the Jenkinsfile of the job papers does, in the harness of the other Jenkinsfile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.jenkins.conftest import Answers, jenkinsfile
from tests.integration.jenkins.test_jenkinsfile import events, rule, scripts

pytestmark = pytest.mark.matrix

PIPELINE = jenkinsfile("papers")
SCENARIOS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "preflight fails": rule("papers_preflight", status=1),
    "set-up fails": rule("setup.sh", status=1),
    "a paper fails": rule("papers_run", status=1),
    "publishing fails": rule("papers_publish", status=2),
    "abort": rule("papers_run", abort=True),
    "after a failure": {"earlier": ["ABORTED", "FAILURE"]},
    "no mail server": {"earlier": ["FAILURE"], **rule("mail")},
    "after a paper failed": {"earlier": ["UNSTABLE", "FAILURE"]},
    "misspelt step": {"jenkinsfile": PIPELINE.replace("archiveArtifacts", "archiveArtefacts")},
    "misspelt condition": {"jenkinsfile": PIPELINE.replace("unstable {", "unstableX {")},
}


@pytest.fixture(scope="module")
def answers(play: Callable[..., Answers]) -> Answers:
    return play(SCENARIOS, "papers")


@pytest.mark.parametrize(
    ("name", "result", "mails"),
    [
        ("as it is", "SUCCESS", []),
        ("preflight fails", "FAILURE", ["failed"]),
        ("set-up fails", "FAILURE", ["failed"]),
        ("a paper fails", "UNSTABLE", []),
        ("publishing fails", "FAILURE", ["failed"]),
        ("abort", "ABORTED", []),
        ("after a failure", "SUCCESS", ["works again"]),
        ("no mail server", "SUCCESS", []),
        ("after a paper failed", "SUCCESS", []),
    ],
)
def test_how_a_build_ends_and_who_is_notified(
    name: str, result: str, mails: list[str], answers: Answers
) -> None:
    answer = answers[name]
    assert (answer["error"], answer["result"]) == (None, result)
    subjects = [event["subject"] for event in events(answer, "mail")]
    assert subjects == [f"compilewatch papers: build 7 {what}" for what in mails]
    (archived,) = events(answer, "archiveArtifacts")
    assert archived["artifacts"] == "build/papers/**"


def test_the_stages(answers: Answers) -> None:
    ran = ["setup", "papers_preflight", "papers_run", "papers_down", "papers_publish"]
    assert scripts(answers["as it is"]) == ran
    assert scripts(answers["preflight fails"]) == ran[:2]
    assert scripts(answers["abort"]) == ran[:4]


@pytest.mark.parametrize("name", ["misspelt step", "misspelt condition"])
def test_a_misspelling_is_found(name: str, answers: Answers) -> None:
    assert "unknown" in answers[name]["error"]
