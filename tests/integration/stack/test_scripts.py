"""scripts/stack.sh and scripts/stack_setup.sh, run for real in a copy of what they read."""

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import requests

from scripts.verify_stack.checks import queried
from scripts.verify_stack.services import CheckError, Stack, until
from tests import services


def run(stack: Stack, *arguments: str, **environment: Any) -> CompletedProcess[str]:
    return stack.call("scripts/stack.sh", *arguments, **environment)


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    """A checkout with free ports and data of its own, before its first set-up."""
    stack = Stack(tmp_path, "my & check|out")
    stack.environment["HOME"] = str(tmp_path)
    stack.outputs.chmod(0o777)
    (stack.checkout / ".env").unlink()
    scrape = stack.checkout / "stack" / "prometheus" / "scrape_pushgateway.yml"
    text = scrape.read_text()
    assert "scrape_interval: 2m" in text
    scrape.write_text(text.replace("scrape_interval: 2m", "scrape_interval: 300ms"))
    yield stack
    run(stack, "down")


@pytest.fixture
def debian(stack: Stack) -> Stack:
    """Skipped where the three services are not installed."""
    for name in ("prometheus", "prometheus-pushgateway", "prometheus-alertmanager"):
        services.program(name, package=name)
    return stack


@pytest.mark.services
def test_what_up_began_is_queried_survives_a_kill_and_is_ended_by_down(debian: Stack) -> None:
    up = run(debian, "up")
    assert up.returncode == 0, up.stderr
    assert f"COMPILEWATCH_PUSHGATEWAY_URL={debian.url('pushgateway')}" in up.stdout
    body = "# TYPE compilewatch_coverage_ratio gauge\ncompilewatch_coverage_ratio 0.5\n"
    group = "/metrics/job/compilewatch/source/library/target/dynamo"
    requests.put(debian.url("pushgateway") + group, data=body, timeout=10).raise_for_status()

    def scraped() -> list[dict[str, Any]]:
        if found := queried(debian, "compilewatch_coverage_ratio"):
            return found
        raise CheckError("never scraped")

    # The group's own labels, and none of the scrape.
    labels = {"job": "compilewatch", "source": "library", "target": "dynamo"}
    (series,) = until(60, scraped)
    assert series["value"][1] == "0.5"
    assert series["metric"] == {"__name__": "compilewatch_coverage_ratio", **labels}
    # Links in notifications name the loopback address, or what is set, and not the host.
    flags = debian.get("prometheus", "/api/v1/status/flags").json()["data"]
    assert flags["web.external-url"] == f"{debian.url('prometheus')}/"
    command = Path(f"/proc/{debian.process('alertmanager')}/cmdline").read_text().split("\0")
    assert f"--web.external-url={debian.url('alertmanager')}/" in command
    assert len(debian.get("prometheus", "/api/v1/rules").json()["data"]["groups"]) == 4
    status = run(debian, "status")
    assert status.returncode == 0
    assert f"prometheus: {debian.url('prometheus')}, process" in status.stdout

    kept = debian.process("prometheus")
    debian.kill("pushgateway")
    status = run(debian, "status")
    assert status.returncode == 3
    assert "pushgateway: died" in status.stdout
    again = run(debian, "up")
    assert again.returncode == 0
    assert f"pushgateway on {debian.url('pushgateway')}" in again.stdout
    assert f"prometheus already runs on {debian.url('prometheus')}" in again.stdout
    assert debian.process("prometheus") == kept

    assert run(debian, "down").returncode == 0
    for name in ("pushgateway", "alertmanager", "prometheus"):
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(debian.url(name), timeout=10)
    assert not list(debian.data.glob("*.pid"))
    assert run(debian, "status").returncode == 3


@pytest.mark.services
def test_a_start_that_fails_leaves_nothing_running(debian: Stack) -> None:
    port = debian.ports["prometheus"]
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", port))
        stranger.listen()
        refused = run(debian, "up")
    assert refused.returncode == 2
    assert refused.stderr == (
        f"stack: prometheus's port {port} is taken by another program: end that, or set "
        "PROMETHEUS_PORT\n"
    )
    assert not list(debian.data.glob("*.pid"))
    (debian.checkout / "stack" / "prometheus" / "rules" / "broken.yml").write_text("groups: 1\n")
    failed = run(debian, "up")
    assert failed.returncode == 1
    assert failed.stderr.startswith("stack: prometheus ended during its start: ")
    assert failed.stderr.count("\n") == 1
    assert not list(debian.data.glob("*.pid"))
    assert "alertmanager: stopped" in run(debian, "status").stdout


def test_a_file_of_a_process_that_is_another_one_or_cut_short_harms_nobody(stack: Stack) -> None:
    stack.data.mkdir()
    with subprocess.Popen(["sleep", "60"]) as stranger:
        (stack.data / "prometheus.pid").write_text(f"{stranger.pid} 1\n")
        down = run(stack, "down")
        assert (down.returncode, down.stdout) == (0, "")
        assert stranger.poll() is None
        stranger.send_signal(signal.SIGKILL)
    assert not list(stack.data.glob("*.pid"))
    for damage in ("", "\n", "12", "x y z", "0 1"):
        (stack.data / "pushgateway.pid").write_text(damage)
        assert "pushgateway: died" in run(stack, "status").stdout
        assert run(stack, "down").returncode == 0
        assert not list(stack.data.glob("*.pid"))


# Answers 200 to everything on the port that its arguments or environment name.
FAKE = """#!{python}
import os, re, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Always(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *arguments):
        pass
said = " ".join(sys.argv[1:])
named = re.search(r"(?:http-listen-port=|addr=127.0.0.1:)(\\d+)", said)
port = os.environ.get("GF_SERVER_HTTP_PORT") or named[1]
print(said, os.environ.get("LOKI_DATA"), os.environ.get("PROMETHEUS_URL"), flush=True)
HTTPServer(("127.0.0.1", int(port)), Always).serve_forever()
"""


@pytest.mark.services
def test_with_loki_alloy_and_grafana_on_path_alloy_collects_and_prometheus_does_not(
    debian: Stack, tmp_path: Path
) -> None:
    """Doubles: none of the three has run here. What they are told is what is tested."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("loki", "alloy", "grafana"):
        (programs / name).write_text(FAKE.format(python=sys.executable))
        (programs / name).chmod(0o755)
    alloy = debian.checkout / "alloy"
    (alloy / "config.alloy").write_text('"pushgateway:9091" "/data/outputs/x" "0.0.0.0" = 3500\n')
    (alloy / "sinks" / "local.alloy").write_text('"http://prometheus:9090" "http://loki:3100"\n')
    path = f"{programs}:{os.environ['PATH']}"
    up = run(debian, "up", PATH=path)
    assert up.returncode == 0, up.stderr + up.stdout
    assert "stack: no " not in up.stdout
    assert run(debian, "status", PATH=path).returncode == 0
    assert "scrape_configs" not in (debian.data / "prometheus" / "prometheus.yml").read_text()
    config = (debian.data / "alloy" / "etc" / "config.alloy").read_text()
    assert config == (
        f'"{debian.url("pushgateway").removeprefix("http://")}" "{debian.outputs}/x"'
        f' "127.0.0.1" = {debian.ports["alloy_push"]}\n'
    )
    sink = (debian.data / "alloy" / "etc" / "sink.alloy").read_text()
    assert sink == f'"{debian.url("prometheus")}" "{debian.url("loki")}"\n'
    assert f"{debian.data}/loki" in run(debian, "logs", "loki").stdout
    assert debian.url("prometheus") in run(debian, "logs", "grafana").stdout
    # Made for Grafana on its first start.
    assert len(debian.password()) == 24


def test_what_is_not_installed_is_named_with_what_follows(stack: Stack, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("bash", "env", "mkdir", "dirname", "sed", "cat"):
        found = shutil.which(tool)
        assert found
        (tools / tool).symlink_to(found)
    up = run(stack, "up", PATH=str(tools))
    assert up.returncode == 0
    assert up.stdout.splitlines()[0] == (
        "stack: no pushgateway: runs cannot push metrics (apt install prometheus-pushgateway)"
    )
    assert up.stdout.count("stack: no ") == 6


def test_wrong_use_is_one_line_and_the_environment_wins_over_the_file(stack: Stack) -> None:
    for arguments in ((), ("start",), ("logs",), ("logs", "nothing")):
        wrong = run(stack, *arguments)
        assert (wrong.returncode, wrong.stdout, wrong.stderr.count("\n")) == (2, "", 1)
    refused = stack.call("scripts/stack_setup.sh", "clowd")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert not (stack.checkout / ".env").exists()
    (stack.checkout / ".env").write_text("# a comment\nSTACK_DATA='elsewhere'\nPATH=/nowhere\n")
    assert "pushgateway: " in run(stack, "status").stdout
    assert not (stack.checkout / "elsewhere").exists()


def setup(stack: Stack, *arguments: str) -> str:
    return stack.run("scripts/stack_setup.sh", *arguments)


def settings(stack: Stack) -> dict[str, str]:
    lines = (stack.checkout / ".env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def test_setup_makes_a_password_once_and_prints_it_once(stack: Stack) -> None:
    first = setup(stack)
    secret = stack.checkout / "stack" / "secrets" / "grafana_admin_password"
    password = secret.read_text()
    assert len(password) == 24
    assert password.isalnum()
    assert password in first
    assert settings(stack) == {"COMPOSE_PROFILES": "local,jenkins", "ALLOY_SINK": "local"}
    of_jenkins = secret.with_name("jenkins_admin_password")
    assert of_jenkins.read_text().strip() in first
    # Others cannot reach the file, which Grafana's user must be able to read once it is mounted.
    modes = {secret.parent: 0o700, secret: 0o644, stack.checkout / ".env": 0o600}
    assert {path: stat.S_IMODE(path.stat().st_mode) for path in modes} == modes
    again = setup(stack)
    assert password not in again
    assert of_jenkins.read_text().strip() not in again
    assert secret.read_text() == password


def test_setup_turns_to_grafana_cloud_and_back_and_leaves_the_rest(stack: Stack) -> None:
    (stack.checkout / "alloy" / "env.secrets.example").write_text("PROM_URL=\n")
    setup(stack)
    env = stack.checkout / ".env"
    changed = env.read_text().replace(
        "COMPOSE_PROFILES=local,jenkins", "COMPOSE_PROFILES=local,jenkins,ci"
    )
    env.write_text(changed + "GRAFANA_PORT=4000\n")
    assert "fill in alloy/env.secrets" in setup(stack, "cloud")
    cloud = {"COMPOSE_PROFILES": "jenkins,ci", "ALLOY_SINK": "cloud", "GRAFANA_PORT": "4000"}
    assert settings(stack) == cloud
    secrets = stack.checkout / "alloy" / "env.secrets"
    assert stat.S_IMODE(secrets.stat().st_mode) == 0o600
    secrets.write_text("PROM_URL=mine\n")
    setup(stack, "cloud")
    # Nothing asked for, nothing turned.
    setup(stack)
    assert settings(stack)["ALLOY_SINK"] == "cloud"
    assert secrets.read_text() == "PROM_URL=mine\n"
    setup(stack, "local")
    assert settings(stack)["COMPOSE_PROFILES"] == "local,jenkins,ci"


def test_setup_opens_outputs_for_the_agent_or_says_how(stack: Stack) -> None:
    outputs = stack.outputs
    outputs.chmod(0o755)
    if os.getuid() == 0:
        setup(stack)
        assert outputs.stat().st_uid == 1000
        os.chown(outputs, 4242, 4242)
    elif os.getuid() == 1000:
        outputs.chmod(0o555)
    refused = stack.call("scripts/stack_setup.sh")
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert f"(user 1000) cannot write to {outputs}" in refused.stderr
    assert f"setfacl -R -m u:1000:rwX,d:u:1000:rwX {outputs}" in refused.stderr
    env = stack.checkout / ".env"
    env.write_text(env.read_text().replace("local,jenkins", "local"))
    setup(stack)


def test_the_runbook_is_where_the_clone_comes_from(stack: Stack) -> None:
    stack.run("git", "init")
    stack.run("git", "remote", "add", "origin", "git@git.example.org:team/compilewatch.git")
    setup(stack, "local")
    page = "https://git.example.org/team/compilewatch/blob/HEAD/docs/alerts.md"
    assert settings(stack)["RUNBOOK_URL"] == page
    # What a person has set stays.
    stack.run("git", "remote", "set-url", "origin", "https://user:secret@other.example.org/x.git")
    setup(stack)
    assert settings(stack)["RUNBOOK_URL"] == page
