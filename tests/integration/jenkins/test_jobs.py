"""What jobs.groovy makes, in a harness that knows methods and attributes of Jenkins' sources."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.jenkins.conftest import JOBS, ROOT, Job, jenkinsfile

CRON = ("properties", "pipelineTriggers", "triggers", "cron", "spec")
ROTATION = ("properties", "buildDiscarder", "strategy", "logRotator")
Run = Callable[..., Any]


def test_a_start_leaves_each_job_complete(jobs: dict[str, Job]) -> None:
    """Each start writes the jobs anew: what is not here is gone until a build runs, or for good."""
    assert list(jobs) == ["compilewatch", "papers"]
    assert jobs["compilewatch"].one(*CRON) == ["H 3 * * *"]
    assert list(jobs["compilewatch"].parameters) == [
        *("SOURCE", "TOP", "TASKS", "FAMILIES", "TARGETS", "MODES", "SHARDS", "ENVIRONMENTS"),
        *(
            "BASELINE",
            "PROFILE",
            "FIX",
            "FAIL_ON_REGRESSION",
            "SHAPES",
            "FORECAST",
            "TRAINIUM",
            "FRESH",
        ),
    ]
    for job in jobs.values():
        assert ["disableConcurrentBuilds", []] in job.one("properties")
        assert job.one(*ROTATION, "numToKeepStr") == ["90"]
        assert job.one(*ROTATION, "artifactNumToKeepStr") == ["30"]
        assert job.one("description")


def test_nothing_of_a_job_is_stated_in_a_second_place(jobs: dict[str, Job]) -> None:
    """What a Jenkinsfile declared would replace what the job has, at its next build."""
    for name in jobs:
        for directive in ("parameters", "triggers", "buildDiscarder", "disableConcurrentBuilds"):
            assert directive not in re.sub(r"//.*", "", jenkinsfile(name))


def test_every_parameter_is_used_explained_and_trimmed(jobs: dict[str, Job]) -> None:
    stages = "".join(p.read_text() for p in (ROOT / "scripts" / "stages").glob("*.sh"))
    page = (ROOT / "docs" / "jenkins.md").read_text(encoding="utf-8")
    for name, job in jobs.items():
        for parameter, given in job.parameters.items():
            assert re.search(rf"\b{parameter}\b", stages), parameter
            assert given["description"]
            assert given.get("trim", True) is True
            assert name == "papers" or f"`{parameter}`" in page
        texts = [one for one in job.one("parameters") if one[0] == "stringParam"]
        assert all(["trim", [True]] in given for _, given in texts)


@pytest.mark.matrix
def test_papers_have_a_schedule_only_where_it_is_set(groovy: Run, jobs: dict[str, Job]) -> None:
    assert "pipelineTriggers" not in [name for name, _ in jobs["papers"].one("properties")]
    path = ROOT / "stack" / "jenkins" / "jobs.groovy"
    made = groovy(JOBS, path, PAPERS_SCHEDULE="H 1 * * *", COMPILEWATCH_BRANCH="next")
    assert Job(made["jobs"]["papers"]).one(*CRON) == ["H 1 * * *"]
    scm = Job(made["jobs"]["papers"]).one("definition", "cpsScm", "scm", "git")
    assert ["branch", ["next"]] in scm


def test_the_first_build_is_queued_once_jenkins_has_loaded_its_queue(
    started: dict[str, Any],
) -> None:
    assert started["queued"] == {
        "while it starts": [],
        "at the first start": ["compilewatch"],
        "after 45 builds": [],
        "left": 0,
    }
