"""compose.yaml as Compose itself understands it, without an engine: rules over all services."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import services

ROOT = Path(__file__).parents[3]

# What a service may do against a rule below, and why.
EXCEPTIONS = {
    ("pushgateway", "digest"): "none was seen for this tag; pin it on the first pull",
    ("alertmanager", "digest"): "none was seen for this tag; pin it on the first pull",
    ("alloy", "digest"): "none was seen for this tag; pin it on the first pull",
    ("keys", "user"): "it gives the keys to the users that read them",
    ("keys", "capabilities"): "it gives the keys to the users that read them",
    ("keys", "read-only"): "ssh-keygen writes beside the key; it ends at once",
    ("keys", "restart"): "it makes keys and ends",
    ("agent", "user"): "sshd has to be root; builds run as the user jenkins",
    ("agent", "capabilities"): "sshd changes to the user who logs in",
    ("agent", "read-only"): "builds write where they like, as on any agent",
    ("agent", "binds"): "it writes the runs that the others read",
    ("jenkins", "read-only"): "its entry point writes into several folders of the image",
}


def compose(*arguments: str, environment: dict[str, str] | None = None) -> str:
    """What `docker compose config` says; its own error where it refuses."""
    program = Path(sys.executable).with_name("docker-compose")
    if not program.exists():
        advice = "docker-compose is missing: make setup-dev"
        pytest.fail(advice) if os.environ.get("CI") else pytest.skip(advice)
    done = subprocess.run(
        [program, *arguments],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def model() -> dict[str, Any]:
    arguments = ["--env-file", ".env.example", "--profile", "*", "config", "--format", "json"]
    loaded: dict[str, Any] = json.loads(compose(*arguments))
    return loaded


def offenders(model: dict[str, Any], rule: str, holds: Any) -> set[str]:
    """Services that break the rule and are not excepted; also those excepted without need."""
    breaking = set()
    for name, service in model["services"].items():
        try:
            kept = bool(holds(service))
        except (KeyError, IndexError, TypeError):
            kept = False  # what the rule looks at is not there at all
        if not kept:
            breaking.add(name)
    excepted = {name for name, of in EXCEPTIONS if of == rule}
    return breaking ^ excepted


IN_IMAGE = {"compilewatch-controller": {"test": ["CMD"]}, "compilewatch-agent": {"test": ["CMD"]}}
"""Images made here: the Dockerfile says how their health is asked."""

RULES = {
    "version": lambda s: "build" in s or re.search(r":v?\d+\.\d+\.\d+[\w.-]*(@|$)", s["image"]),
    "digest": lambda s: "build" in s or re.search(r"@sha256:[0-9a-f]{64}$", s["image"]),
    "health": lambda s: s.get("healthcheck", IN_IMAGE.get(s["image"]))["test"][0] == "CMD",
    "loopback": lambda s: all(p["host_ip"] == "127.0.0.1" for p in s.get("ports", [])),
    "user": lambda s: (
        s["image"] == "compilewatch-controller"  # the image's own user is jenkins
        or (not re.match(r"(0|root)?(:|$)", s.get("user", "")))
    ),
    "capabilities": lambda s: s["cap_drop"] == ["ALL"] and not s.get("cap_add"),
    "privileges": lambda s: s["security_opt"] == ["no-new-privileges:true"],
    "unprivileged": lambda s: not s.get("privileged") and "docker.sock" not in json.dumps(s),
    "read-only": lambda s: s["read_only"] is True,
    "binds": lambda s: all(v.get("read_only") for v in s["volumes"] if v["type"] == "bind"),
    "limits": lambda s: {"cpus", "memory", "pids"} <= set(s["deploy"]["resources"]["limits"]),
    "logs": lambda s: {"max-size", "max-file"} <= set(s["logging"]["options"]),
    "restart": lambda s: s["restart"] == "unless-stopped",
    "waiting": lambda s: all(
        d["condition"] in ("service_healthy", "service_completed_successfully")
        for d in s.get("depends_on", {}).values()
    ),
}


def test_every_service_keeps_the_rules_or_is_excepted_with_a_reason(model: dict[str, Any]) -> None:
    broken = {rule: offenders(model, rule, holds) for rule, holds in RULES.items()}
    assert not [rule for rule in broken.items() if rule[1]]


def test_what_is_kept_lies_in_named_volumes_that_are_all_used(model: dict[str, Any]) -> None:
    used = {
        volume["source"]
        for service in model["services"].values()
        for volume in service["volumes"]
        if volume["type"] == "volume"
    }
    assert used == set(model["volumes"])


def test_what_is_mounted_from_the_checkout_is_there(model: dict[str, Any]) -> None:
    """Docker would make a folder, of root's, of what is missing."""
    made = {"alloy", "dashboards", "outputs"}  # by others, or by running
    mounted = {
        Path(volume["source"]).relative_to(ROOT)
        for service in model["services"].values()
        for volume in service["volumes"]
        if volume["type"] == "bind"
    }
    assert {
        path for path in mounted if not made & set(path.parts[:1]) and not (ROOT / path).exists()
    } == set()


def test_settings_choose_services_and_ports_and_a_fresh_checkout_says_to_run_the_setup() -> None:
    # No .env of this checkout: it would choose.
    cloud = {"COMPOSE_PROFILES": "", "ALLOY_SINK": "cloud"}
    services = compose("--env-file", os.devnull, "config", "--services", environment=cloud).split()
    assert {"pushgateway", "alloy"} <= set(services)
    assert not {"prometheus", "alertmanager", "loki", "grafana"} & set(services)
    moved = {"GRAFANA_PORT": "13000", "ALLOY_SINK": "local", "COMPOSE_PROFILES": "local"}
    text = compose("--env-file", os.devnull, "config", "--format", "json", environment=moved)
    grafana = json.loads(text)["services"]["grafana"]
    assert grafana["ports"][0]["published"] == "13000"
    assert grafana["environment"]["GF_SERVER_ROOT_URL"] == "http://127.0.0.1:13000/"
    with pytest.raises(AssertionError, match=r"run scripts/stack_setup\.sh once"):
        compose("--env-file", os.devnull, "config", "-q")


def test_grafana_itself_reads_its_password_from_the_secret(model: dict[str, Any]) -> None:
    """Without Docker as well: only the image's start script knows variables that end in __FILE."""
    grafana = model["services"]["grafana"]
    (secret,) = grafana["secrets"]
    assert secret["source"] == "grafana_admin_password"
    password = grafana["environment"]["GF_SECURITY_ADMIN_PASSWORD"].replace("$$", "$")
    assert password == "$__file{/run/secrets/grafana_admin_password}"
    script = (ROOT / "scripts" / "stack.sh").read_text()
    assert r"GF_SECURITY_ADMIN_PASSWORD=\$__file{$root/stack/secrets/grafana_admin" in script
    assert not [name for name in grafana["environment"] if name.endswith("__FILE")]


@pytest.mark.services
def test_alloys_health_check_believes_only_200(model: dict[str, Any], tmp_path: Path) -> None:
    kind, *command = model["services"]["alloy"]["healthcheck"]["test"]
    assert kind == "CMD"
    # Any server that has the same page will do.
    with services.pushgateway(tmp_path) as gateway:
        port = gateway.url.rpartition(":")[2]
        asked = [part.replace("12345", port) for part in command]
        assert subprocess.run(asked, check=False).returncode == 0
        absent = [part.replace("/-/ready", "/-/nothing") for part in asked]
        assert subprocess.run(absent, check=False).returncode != 0
    down = subprocess.run(asked, capture_output=True, check=False)
    assert down.returncode != 0
