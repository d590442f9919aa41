"""`compilewatch trainium` against moto's EC2; what ends it needs a process."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.integration.extras.executor.trainium.conftest import REGION, World
from tests.team import PROGRAM, run_here


def environ(world: World, **variables: str) -> dict[str, str]:
    settings = {"REGION": REGION, "HOST": "127.0.0.1", "POLL_SECONDS": "0.05"}
    settings["SSH_PORT"] = str(world.sshd.port)
    own = {f"COMPILEWATCH_TRAINIUM_{name}": value for name, value in settings.items()}
    cache = {"COMPILEWATCH_CACHE": str(world.folder / "cache"), "NO_COLOR": "1"}
    return os.environ | own | cache | variables


def run(world: World, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run_here(world.folder, environ(world, **variables), "trainium", *arguments)


def test_up_status_down(world: World) -> None:
    up = run(world, "up")
    assert up.returncode == 0, up.stderr
    name = f"{world.instance} (trn1.2xlarge, us-east-1)"
    assert up.stdout.startswith(
        f"{name} is running and responds on 127.0.0.1:{world.sshd.port}. Cost: $"
    )
    assert "at $1.34375 an hour as of 2026-11-21, without disks. Stop it with: " in up.stdout
    assert "waiting for its status checks" in up.stderr
    status = run(world, "status", "--json")
    assert status.returncode == 0
    report = json.loads(status.stdout)
    assert (report["state"], report["problem"], report["started_by_run"]) == ("running", "", True)
    down = run(world, "down")
    assert down.returncode == 0, down.stderr
    assert down.stdout.startswith(f"{name} is stopped. Cost: $0.0")
    again = run(world, "down")
    assert (again.returncode, again.stdout[:29]) == (0, "This run started no instance,")
    world.put("running")
    assert "so `down` leaves it running" in run(world, "up").stdout
    assert f"{world.instance} keeps running: this run" in run(world, "down").stdout
    world.put("stopped")
    stopped = run(world, "status")
    assert stopped.returncode == 1
    assert stopped.stdout.startswith(f"{name} is stopped. Running costs $1.34375 an hour")


@pytest.mark.matrix
def test_the_instance_of_an_executor_that_cannot_be_reached_is_not_stopped(world: World) -> None:
    assert run(world, "up").returncode == 0
    down = run(world, "down", TRAINIUM_ENDPOINT=f"http://127.0.0.1:{world.sshd.port}")
    assert down.returncode == 2, down.stdout
    assert "is not an executor of compilewatch" in down.stderr
    assert len(down.stderr.splitlines()) == 1
    forced = run(world, "down", "--force", TRAINIUM_ENDPOINT="http://127.0.0.1:1")
    assert "is stopped" in forced.stdout, forced.stderr


@contextlib.contextmanager
def waiting(world: World) -> Iterator[subprocess.Popen[str]]:
    """An `up` that has started the instance and waits for its agent, in vain."""
    world.sshd.banner = b"not yet"
    command = [str(PROGRAM), "trainium", "up"]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=environ(world)
    ) as process:
        assert process.stderr is not None
        next(line for line in process.stderr if line.startswith("waiting for the agent"))
        assert world.state() == "running"
        yield process


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_an_aborted_build_stops_what_it_started(world: World, sent: signal.Signals) -> None:
    with waiting(world) as process:
        process.send_signal(sent)
        process.send_signal(sent)
        assert process.stderr is not None
        output = process.stderr.read()
        assert process.wait(timeout=60) == 130
    assert f"stopping {world.instance} again" in output
    assert world.state() == "stopped"
    assert not (world.folder / "cache" / "trainium.json").exists()


def test_a_killed_up_leaves_word_for_down(world: World) -> None:
    with waiting(world) as process:
        process.kill()
    assert world.state() == "running"
    down = run(world, "down", "--json")
    assert json.loads(down.stdout)["action"] == "stopped"
    assert world.state() == "stopped"


def test_help_needs_no_boto3() -> None:
    code = "import sys, compilewatch.extras.executor.cli as _; assert 'boto3' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
