"""The monitor page of several folders, run once in Streamlit's own test client."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import compilewatch
from compilewatch.environments import BOOTSTRAP
from compilewatch.environments.creation import Tool
from compilewatch.extras.monitor.cli import VARIABLES
from compilewatch.extras.profiles.store import ProfileFolder
from compilewatch.profiling import Profiler
from tests import profiled

SCRIPT = Path(compilewatch.__file__).parent / "extras" / "monitor" / "page.py"

Pages = Mapping[str, dict[str, Any]]

CLIENT = """
import json, runpy, sys

bootstrap, script, *roots = sys.argv[1:]
sys.argv = [bootstrap]
runpy.run_path(bootstrap)["load_package"]()
from streamlit.testing.v1 import AppTest

for root in roots:
    sys.argv = [script, root]
    page = AppTest.from_file(script, default_timeout=60).run()
    print(json.dumps({
        "exceptions": [each.message for each in page.exception],
        "title": [each.value for each in page.title],
        "tabs": [each.label for each in page.tabs],
        "entries": [each.options for each in page.sidebar.selectbox],
        "metrics": {each.label: each.value for each in page.metric},
        "warnings": [each.value for each in page.warning],
        "infos": [each.value for each in page.info],
        "errors": [each.value for each in page.error],
    }))
"""


def train(root: Path, steps: int = 12) -> Path:
    with Profiler(root / "profiles", trace_steps=0, model="Tiny_*model*") as profiler:
        for _ in range(steps):
            with profiler.stage("data"):
                time.sleep(0.002)
            profiler.step(loss=0.5)
    assert profiler.folder is not None
    return profiler.folder


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Pages:
    """What the page shows of an empty folder, of profiles, and of a damaged one.

    In one process, as the import of Streamlit takes most of the time.
    """
    names = ("empty", "training", "damaged", "inference")
    roots = {name: tmp_path_factory.mktemp(name) for name in names}
    train(roots["training"])
    (train(roots["damaged"]) / "metrics.json").write_text("{")
    made, _ = profiled.profile()
    folder = ProfileFolder(roots["inference"] / made.id)
    folder.finish(made)
    folder.close()
    command = [str(Tool("monitor").python), "-c", CLIENT, str(BOOTSTRAP), str(SCRIPT)]
    done = subprocess.run(
        [*command, *map(str, roots.values())],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | VARIABLES,
        timeout=100,
    )
    lines = done.stdout.splitlines()[-len(roots) :]
    return {name: json.loads(line) for name, line in zip(roots, lines, strict=True)}
