"""The Jenkinsfile in a harness, on the Groovy that npm-groovy-lint brings."""

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
JAVA = ("java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
HARNESS = Path(__file__).with_name("Harness.groovy")
JOBS = Path(__file__).with_name("Jobs.groovy")
FACTS = ROOT / "stack" / "jenkins" / "facts.json"

Scenarios = Mapping[str, Mapping[str, Any]]
Answers = dict[str, dict[str, Any]]

SUMMARY = {"text": "24 of 25", "html": "24 of 25 · <a href='r'>report</a>", "trainium": ""}
"""What the stub of scripts/stages/summary.sh prints."""


@pytest.fixture(scope="session")
def groovy_lint() -> Path:
    """The folder of npm-groovy-lint; it is installed once into the user's cache folder."""
    done = subprocess.run(
        [ROOT / "scripts" / "groovy_lint.sh", "--home"], capture_output=True, text=True, check=False
    )
    if done.returncode == 3 and not os.environ.get("CI"):
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@pytest.fixture(scope="session")
def groovy(groovy_lint: Path) -> Callable[..., Any]:
    """Run a harness with its arguments and return the JSON that it prints."""
    jars = sorted((groovy_lint / "lib" / "java" / "groovy" / "lib").glob("*.jar"))
    assert jars, f"no Groovy in {groovy_lint}"

    def run(harness: Path, path: Path, **variables: str) -> Any:
        done = subprocess.run(
            [*JAVA, "-cp", ":".join(map(str, jars)), "groovy.ui.GroovyMain", harness, path, FACTS],
            capture_output=True,
            text=True,
            check=False,
            env={"PATH": os.environ["PATH"], **variables},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    return run


@dataclass(frozen=True)
class Job:
    """What jobs.groovy says about a job; `defaults` are its parameters in their order."""

    calls: list[Any]

    def one(self, *names: str) -> Any:
        """The arguments of the only call at this place."""
        found = self.calls
        for name in names:
            (found,) = [arguments for called, arguments in found if called == name]
        return found

    @property
    def parameters(self) -> dict[str, dict[str, Any]]:
        found = {}
        for kind, given in self.one("parameters"):
            if kind == "stringParam":
                held = {name: arguments[0] for name, arguments in given}
                found[held.pop("name")] = held
            else:
                name, value, meaning = given
                chosen = value[0] if kind == "choiceParam" else value
                found[name] = {"defaultValue": chosen, "description": meaning, "choices": value}
        return found

    @property
    def defaults(self) -> dict[str, Any]:
        return {name: given["defaultValue"] for name, given in self.parameters.items()}


@pytest.fixture(scope="session")
def started(groovy: Callable[..., Any]) -> dict[str, Any]:
    """What jobs.groovy makes of an installation without settings of its own."""
    made: dict[str, Any] = groovy(JOBS, ROOT / "stack" / "jenkins" / "jobs.groovy")
    assert made["error"] is None
    return made


@pytest.fixture(scope="session")
def jobs(started: dict[str, Any]) -> dict[str, Job]:
    return {name: Job(calls) for name, calls in started["jobs"].items()}


@pytest.fixture(scope="session")
def play(
    groovy: Callable[..., Any], jobs: dict[str, Job], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Scenarios], Answers]:
    """Run scenarios, all in one JVM, as starting one is most of the time it takes."""

    def run(scenarios: Scenarios, name: str = "compilewatch") -> Answers:
        usual = {
            "jenkinsfile": jenkinsfile(name),
            "labels": ["home", "cpu", "trainium"],
            "defaults": jobs[name].defaults,
            "stdout": json.dumps(SUMMARY),
        }
        path = tmp_path_factory.mktemp("scenarios") / "scenarios.json"
        path.write_text(json.dumps({name: {**usual, **s} for name, s in scenarios.items()}))
        answers: Answers = groovy(HARNESS, path)
        return answers

    return run


def jenkinsfile(job: str) -> str:
    path = {"compilewatch": "Jenkinsfile", "papers": "stack/jenkins/papers.Jenkinsfile"}[job]
    return (ROOT / path).read_text(encoding="utf-8")
