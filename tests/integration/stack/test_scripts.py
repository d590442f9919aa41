"""scripts/stack.sh and scripts/stack_setup.sh, run for real in a copy of what they read."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import services
from tests.sharing import free_port

ROOT = Path(__file__).parents[3]
PATIENCE_SECONDS = 60.0
PORTS = (
    "PUSHGATEWAY_PORT",
    "PROMETHEUS_PORT",
    "ALERTMANAGER_PORT",
    "LOKI_PORT",
    "ALLOY_PORT",
    "ALLOY_PUSH_PORT",
    "GRAFANA_PORT",
)


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A checkout with free ports and a data folder of its own."""

    root: Path
    environment: dict[str, str]

    @property
    def data(self) -> Path:
        return Path(self.environment["STACK_DATA"])

    def run(
        self, *arguments: str, script: str = "stack.sh", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.root / "scripts" / script, *arguments],
            env=self.environment | environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS * 2,
        )

    def url(self, service: str) -> str:
        return f"http://127.0.0.1:{self.environment[f'{service.upper()}_PORT']}"

    def process(self, service: str) -> int:
        return int((self.data / f"{service}.pid").read_text().split()[0])


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    root = tmp_path / "my & check|out"
    (root / "scripts").mkdir(parents=True)
    for script in ("stack.sh", "stack_setup.sh"):
        shutil.copy(ROOT / "scripts" / script, root / "scripts")
    shutil.copytree(
        ROOT / "stack", root / "stack", ignore=shutil.ignore_patterns("secrets", "own.yml")
    )
    shutil.copy(ROOT / ".env.example", root)
    (root / "outputs").mkdir()
    (root / "outputs").chmod(0o777)
    scrape = root / "stack" / "prometheus" / "scrape_pushgateway.yml"
    text = scrape.read_text()
    assert "scrape_interval: 2m" in text
    scrape.write_text(text.replace("scrape_interval: 2m", "scrape_interval: 300ms"))
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "STACK_DATA": str(tmp_path / "data"),
    } | {name: str(free_port()) for name in PORTS}
    made = Stack(root=root, environment=environment)
    yield made
    made.run("down")


@pytest.fixture
def debian(stack: Stack) -> Stack:
    """Skipped where the three services are not installed."""
    for name in ("prometheus", "prometheus-pushgateway", "prometheus-alertmanager"):
        services.program(name, package=name)
    return stack


def answers(stack: Stack, expression: str) -> list[Any]:
    query = urllib.parse.urlencode({"query": expression})
    url = f"{stack.url('prometheus')}/api/v1/query?{query}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        return list(json.load(answer)["data"]["result"])


@pytest.mark.services
def test_what_is_pushed_can_be_queried_and_down_ends_what_up_began(debian: Stack) -> None:
    up = debian.run("up")
    assert up.returncode == 0, up.stderr
    assert f"COMPILEWATCH_PUSHGATEWAY_URL={debian.url('pushgateway')}" in up.stdout

    body = b"# TYPE compilewatch_coverage_ratio gauge\ncompilewatch_coverage_ratio 0.5\n"
    group = "/metrics/job/compilewatch/source/library/target/dynamo"
    request = urllib.request.Request(debian.url("pushgateway") + group, data=body, method="PUT")
    urllib.request.urlopen(request, timeout=10).close()
    until = time.monotonic() + PATIENCE_SECONDS
    while not (found := answers(debian, "compilewatch_coverage_ratio")):
        assert time.monotonic() < until, "never scraped"
        time.sleep(0.1)
    assert found[0]["value"][1] == "0.5"
    # The group's own labels, and none of the scrape.
    assert found[0]["metric"] == {
        "__name__": "compilewatch_coverage_ratio",
        "job": "compilewatch",
        "source": "library",
        "target": "dynamo",
    }

    # Links in notifications name the loopback address, or what is set, and not the host.
    flags = debian.url("prometheus") + "/api/v1/status/flags"
    with urllib.request.urlopen(flags, timeout=10) as answer:
        assert json.load(answer)["data"]["web.external-url"] == f"{debian.url('prometheus')}/"
    process = Path(f"/proc/{debian.process('alertmanager')}/cmdline").read_text().split("\0")
    assert f"--web.external-url={debian.url('alertmanager')}/" in process

    with urllib.request.urlopen(debian.url("prometheus") + "/api/v1/rules", timeout=10) as answer:
        assert len(json.load(answer)["data"]["groups"]) == 4

    status = debian.run("status")
    assert status.returncode == 0
    assert f"prometheus: {debian.url('prometheus')}, process" in status.stdout
    down = debian.run("down")
    assert down.returncode == 0
    for name in ("pushgateway", "alertmanager", "prometheus"):
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(debian.url(name), timeout=10)
    assert not list(debian.data.glob("*.pid"))
    assert debian.run("status").returncode == 3


@pytest.mark.services
def test_a_killed_service_is_named_and_started_again_alone(debian: Stack) -> None:
    assert debian.run("up").returncode == 0
    kept = debian.process("prometheus")
    os.kill(debian.process("pushgateway"), signal.SIGKILL)
    status = debian.run("status")
    assert status.returncode == 3
    assert "pushgateway: died" in status.stdout
    again = debian.run("up")
    assert again.returncode == 0
    assert f"pushgateway on {debian.url('pushgateway')}" in again.stdout
    assert f"prometheus already runs on {debian.url('prometheus')}" in again.stdout
    assert debian.process("prometheus") == kept


@pytest.mark.services
def test_a_port_that_a_stranger_has_stops_everything_before_it_starts(debian: Stack) -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", int(debian.environment["PROMETHEUS_PORT"])))
        stranger.listen()
        refused = debian.run("up")
    assert refused.returncode == 2
    assert refused.stderr == (
        f"stack: prometheus's port {debian.environment['PROMETHEUS_PORT']} is taken by another"
        " program: end that, or set PROMETHEUS_PORT\n"
    )
    assert not list(debian.data.glob("*.pid"))


@pytest.mark.services
def test_a_service_that_cannot_start_takes_the_others_of_this_start_along(debian: Stack) -> None:
    (debian.root / "stack" / "prometheus" / "rules" / "broken.yml").write_text("groups: 1\n")
    failed = debian.run("up")
    assert failed.returncode == 1
    assert failed.stderr.startswith("stack: prometheus ended during its start: ")
    assert failed.stderr.count("\n") == 1
    assert not list(debian.data.glob("*.pid"))
    assert "alertmanager: stopped" in debian.run("status").stdout


def test_a_process_id_that_is_by_now_another_process_is_left_alone(stack: Stack) -> None:
    with subprocess.Popen(["sleep", "60"]) as stranger:
        stack.data.mkdir()
        (stack.data / "prometheus.pid").write_text(f"{stranger.pid} 1\n")
        down = stack.run("down")
        assert (down.returncode, down.stdout) == (0, "")
        assert stranger.poll() is None
        stranger.kill()
    assert not list(stack.data.glob("*.pid"))


@pytest.mark.parametrize("damage", ["", "\n", "12", "x y z", "0 1"])
def test_a_process_file_cut_short_is_no_obstacle(stack: Stack, damage: str) -> None:
    stack.data.mkdir()
    (stack.data / "pushgateway.pid").write_text(damage)
    assert "pushgateway: died" in stack.run("status").stdout
    assert stack.run("down").returncode == 0
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
    alloy = debian.root / "alloy"
    (alloy / "sinks").mkdir(parents=True)
    (alloy / "config.alloy").write_text('"pushgateway:9091" "/data/outputs/x" "0.0.0.0" = 3500\n')
    (alloy / "sinks" / "local.alloy").write_text('"http://prometheus:9090" "http://loki:3100"\n')
    path = f"{programs}:{os.environ['PATH']}"
    up = debian.run("up", PATH=path)
    assert up.returncode == 0, up.stderr + up.stdout
    assert "stack: no " not in up.stdout
    assert debian.run("status", PATH=path).returncode == 0
    assert "scrape_configs" not in (debian.data / "prometheus" / "prometheus.yml").read_text()
    config = (debian.data / "alloy" / "etc" / "config.alloy").read_text()
    assert config == (
        f'"{debian.url("pushgateway").removeprefix("http://")}" "{debian.root}/outputs/x"'
        f' "127.0.0.1" = {debian.environment["ALLOY_PUSH_PORT"]}\n'
    )
    sink = (debian.data / "alloy" / "etc" / "sink.alloy").read_text()
    assert sink == f'"{debian.url("prometheus")}" "{debian.url("loki")}"\n'
    assert f"{debian.data}/loki" in debian.run("logs", "loki").stdout
    assert debian.url("prometheus") in debian.run("logs", "grafana").stdout
    # Made for Grafana on its first start.
    assert (debian.root / "stack" / "secrets" / "grafana_admin_password").stat().st_size == 24


def test_what_is_not_installed_is_named_with_what_follows(stack: Stack, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("bash", "env", "mkdir", "dirname", "sed", "cat"):
        found = shutil.which(tool)
        assert found
        (tools / tool).symlink_to(found)
    up = stack.run("up", PATH=str(tools))
    assert up.returncode == 0
    assert up.stdout.splitlines()[0] == (
        "stack: no pushgateway: runs cannot push metrics (apt install prometheus-pushgateway)"
    )
    assert up.stdout.count("stack: no ") == 6


@pytest.mark.parametrize("arguments", [(), ("start",), ("logs",), ("logs", "nothing")])
def test_wrong_use_is_one_line(stack: Stack, arguments: tuple[str, ...]) -> None:
    wrong = stack.run(*arguments)
    assert (wrong.returncode, wrong.stdout, wrong.stderr.count("\n")) == (2, "", 1)


def setup(stack: Stack, *arguments: str) -> str:
    done = stack.run(*arguments, script="stack_setup.sh")
    assert done.returncode == 0, done.stderr
    return done.stdout


def settings(stack: Stack) -> dict[str, str]:
    lines = (stack.root / ".env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def test_setup_makes_a_password_once_and_prints_it_once(stack: Stack) -> None:
    first = setup(stack)
    secret = stack.root / "stack" / "secrets" / "grafana_admin_password"
    password = secret.read_text()
    assert len(password) == 24
    assert password.isalnum()
    assert password in first
    assert settings(stack) == {"COMPOSE_PROFILES": "local,jenkins", "ALLOY_SINK": "local"}
    of_jenkins = secret.with_name("jenkins_admin_password")
    assert of_jenkins.read_text().strip() in first
    # Others cannot reach the file, which Grafana's user must be able to read once it is mounted.
    assert stat.S_IMODE(secret.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(secret.stat().st_mode) == 0o644
    assert stat.S_IMODE((stack.root / ".env").stat().st_mode) == 0o600
    again = setup(stack)
    assert password not in again
    assert of_jenkins.read_text().strip() not in again
    assert secret.read_text() == password


def test_setup_turns_to_grafana_cloud_and_back_and_leaves_the_rest(stack: Stack) -> None:
    (stack.root / "alloy").mkdir()
    (stack.root / "alloy" / "env.secrets.example").write_text("PROM_URL=\n")
    setup(stack)
    env = stack.root / ".env"
    changed = env.read_text().replace(
        "COMPOSE_PROFILES=local,jenkins", "COMPOSE_PROFILES=local,jenkins,ci"
    )
    env.write_text(changed + "GRAFANA_PORT=4000\n")
    assert "fill in alloy/env.secrets" in setup(stack, "cloud")
    assert settings(stack) == {
        "COMPOSE_PROFILES": "jenkins,ci",
        "ALLOY_SINK": "cloud",
        "GRAFANA_PORT": "4000",
    }
    secrets = stack.root / "alloy" / "env.secrets"
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
    outputs = stack.root / "outputs"
    outputs.chmod(0o755)
    if os.getuid() == 0:
        setup(stack)
        assert outputs.stat().st_uid == 1000
        os.chown(outputs, 4242, 4242)
    elif os.getuid() == 1000:
        outputs.chmod(0o555)
    refused = stack.run(script="stack_setup.sh")
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert f"(user 1000) cannot write to {outputs}" in refused.stderr
    assert f"setfacl -R -m u:1000:rwX,d:u:1000:rwX {outputs}" in refused.stderr
    env = stack.root / ".env"
    env.write_text(env.read_text().replace("local,jenkins", "local"))
    setup(stack)


def test_setup_rejects_what_it_does_not_know(stack: Stack) -> None:
    refused = stack.run("clowd", script="stack_setup.sh")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert not (stack.root / ".env").exists()


def test_settings_come_from_the_file_and_the_environment_wins(stack: Stack) -> None:
    (stack.root / ".env").write_text("# a comment\nSTACK_DATA='elsewhere'\nPATH=/nowhere\n")
    assert "pushgateway: " in stack.run("status").stdout
    assert not (stack.root / "elsewhere").exists()


def test_the_runbook_is_where_the_clone_comes_from(stack: Stack) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(["git", *arguments], cwd=stack.root, check=True, capture_output=True)

    git("init")
    git("remote", "add", "origin", "git@git.example.org:team/compilewatch.git")
    made = stack.run("local", script="stack_setup.sh")
    assert made.returncode == 0, made.stderr
    page = "https://git.example.org/team/compilewatch/blob/HEAD/docs/alerts.md"
    assert f"RUNBOOK_URL={page}\n" in (stack.root / ".env").read_text()
    # What a person has set stays.
    git("remote", "set-url", "origin", "https://user:secret@other.example.org/x.git")
    stack.run(script="stack_setup.sh")
    assert f"RUNBOOK_URL={page}\n" in (stack.root / ".env").read_text()
