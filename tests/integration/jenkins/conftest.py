"""The Jenkinsfile in a harness, on the Groovy that npm-groovy-lint brings."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
JAVA = ("java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
HARNESS = Path(__file__).with_name("Harness.groovy")

Scenarios = Mapping[str, Mapping[str, Any]]
Answers = dict[str, dict[str, Any]]


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
def play(
    groovy_lint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Scenarios], Answers]:
    """Run scenarios, all in one JVM, as starting one is most of the time it takes."""
    jars = sorted((groovy_lint / "lib" / "java" / "groovy" / "lib").glob("*.jar"))
    assert jars, f"no Groovy in {groovy_lint}"

    def run(scenarios: Scenarios) -> Answers:
        usual = {
            "jenkinsfile": (ROOT / "Jenkinsfile").read_text(encoding="utf-8"),
            "labels": ["home", "cpu", "trainium"],
        }
        path = tmp_path_factory.mktemp("scenarios") / "scenarios.json"
        path.write_text(json.dumps({name: {**usual, **s} for name, s in scenarios.items()}))
        done = subprocess.run(
            [*JAVA, "-cp", ":".join(map(str, jars)), "groovy.ui.GroovyMain", HARNESS, path],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        answers: Answers = json.loads(done.stdout)
        return answers

    return run
