"""The monitor page in Streamlit's own test client and in a real headless Chromium."""

import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import sync_playwright

import compilewatch
from compilewatch.environments import BOOTSTRAP
from compilewatch.environments.creation import Tool
from compilewatch.extras.monitor.cli import VARIABLES
from compilewatch.extras.profiles.store import ProfileFolder
from compilewatch.profiling import Profiler
from tests import profiled, services
from tests.sharing import free_port
from tests.team import PROGRAM

pytestmark = pytest.mark.monitor

SCRIPT = Path(compilewatch.__file__).parent / "extras" / "monitor" / "page.py"

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
        "tabs": [each.label for each in page.tabs],
        "metrics": {each.label: each.value for each in page.metric},
        "warnings": [each.value for each in page.warning],
        "infos": [each.value for each in page.info],
        "errors": [each.value for each in page.error],
    }))
"""


def train(root: Path) -> Path:
    with Profiler(root / "profiles", trace_steps=0, model="Tiny_*model*") as profiler:
        for _ in range(12):
            with profiler.stage("data"):
                time.sleep(0.002)
            profiler.step(loss=0.5)
    assert profiler.folder is not None
    return profiler.folder


# Only Streamlit's own client runs the script as it does, and rejects wrong rows, colours and
# arguments of a chart. One process, as the import takes most of the time.
def test_the_page_of_nothing_of_profiles_and_of_a_damaged_one(tmp_path: Path) -> None:
    names = ("empty", "training", "damaged", "inference")
    roots = {name: tmp_path / name for name in names}
    roots["empty"].mkdir()
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
    empty, training, damaged, inference = map(json.loads, done.stdout.splitlines()[-4:])
    for page in (empty, training, damaged, inference):
        assert page["exceptions"] == []
    assert "compilewatch sweep" in empty["infos"][0]
    assert training["tabs"] == ["Overview", "Timing", "Memory", "Artifacts"]
    assert training["metrics"]["steps"] == "12"
    assert any("the stage data takes" in each for each in training["warnings"])
    assert training["errors"] == inference["errors"] == []
    assert any("metrics.json: damaged" in error for error in damaged["errors"])
    assert inference["metrics"]["best batch"] == "8 on inductor"
    assert not {"No times yet.", "No memory was measured."} & {*inference["infos"]}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    port = free_port()
    command = [str(PROGRAM), "monitor", "--no-browser", "--port", str(port)]
    server = subprocess.Popen([*command, "--output", str(tmp_path)])
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=5)
                break
            except OSError:
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/"
    finally:
        server.send_signal(signal.SIGINT)
        assert server.wait(30) == 0


# A browser is the only client of which all requests can be seen.
@pytest.mark.matrix
@pytest.mark.browser
def test_a_new_step_is_visible_soon_and_no_other_host_is_called(
    tmp_path: Path, served: str
) -> None:
    chromium = services.program("chromium", package="chromium")
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    hosts = set()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        page = browser.new_page()
        page.on("request", lambda request: hosts.add(urlsplit(request.url).hostname))
        page.goto(served)
        page.get_by_text("holds no run and no profile yet").wait_for(timeout=60_000)
        with Profiler(tmp_path / "profiles") as profiler:
            profiler.step()
            metric = page.get_by_test_id("stMetricValue").first
            metric.wait_for(timeout=60_000)
            assert metric.inner_text() == "1"
            for _ in range(41):
                profiler.step()
            page.get_by_test_id("stMetricValue").get_by_text("42").first.wait_for(timeout=30_000)
            for tab in ("Timing", "Memory", "Artifacts"):
                page.get_by_role("tab", name=tab).click()
            page.get_by_text(" files in ").first.wait_for(timeout=30_000)
            assert page.get_by_test_id("stException").count() == 0
        page.get_by_role("tab", name="Overview").click()
        page.get_by_text("finished", exact=True).first.wait_for(timeout=30_000)
        browser.close()
    assert hosts <= {"127.0.0.1", None}


def test_a_port_that_is_in_use_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [str(PROGRAM), "monitor", "--port", str(port), "--output", str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.strip() == (
        f"compilewatch: port {port} cannot be used (Address already in use): choose another one "
        "with --port"
    )
