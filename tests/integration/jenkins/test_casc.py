"""What Jenkins is configured with, against the sources of core and plugins; images; compose."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from compilewatch.config import load_settings
from tests import services
from tests.integration.jenkins.conftest import FACTS as FACTS_FILE
from tests.integration.jenkins.conftest import ROOT

FOLDER = ROOT / "stack" / "jenkins"
CASC = (FOLDER / "casc.yaml").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def casc() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(CASC)
    return found


FACTS: dict[str, Any] = json.loads(FACTS_FILE.read_text(encoding="utf-8"))
"""What Jenkins and its plugins take, as recorded from their sources."""


def problems(casc: dict[str, Any]) -> list[str]:
    """What the configuration names and Jenkins does not have, by place."""
    found = []
    roots = FACTS["roots"]
    for root, value in casc.items():
        if isinstance(value, list):
            found += list(wrong(value, roots[root][""], root))
            continue
        # A category of global configuration has elements that each plugin adds.
        places = {root: value} if root in roots else {f"{root}.{k}": v for k, v in value.items()}
        for place, inner in places.items():
            if place in roots:
                found += list(wrong_attributes(inner, roots[place], place))
            else:
                found.append(f"{place}: unknown element")
    return found


def wrong_attributes(
    given: dict[str, Any], attributes: dict[str, str], place: str
) -> Iterator[str]:
    for name, value in given.items():
        if name in attributes:
            yield from wrong(value, attributes[name], f"{place}.{name}")
        else:
            yield f"{place}: unknown attribute {name}"


def wrong(value: Any, kind: str, place: str) -> Iterator[str]:
    """What is wrong with a value of an attribute whose type, or that of its entries, is `kind`."""
    if isinstance(value, list):
        for number, entry in enumerate(value):
            yield from wrong(entry, kind, f"{place}[{number}]")
        return
    named = of_kind(kind)
    if named:
        symbol, inner = (value, {}) if isinstance(value, str) else next(iter(value.items()))
        if symbol not in named:
            yield f"{place}: Jenkins has no {kind} {symbol}"
        elif isinstance(inner, dict):
            yield from wrong_attributes(inner, attributes_of(named[symbol]), place)
    elif isinstance(value, dict):
        (made,) = [c for name, c in FACTS["classes"].items() if name.rpartition(".")[2] == kind]
        yield from wrong_attributes(value, attributes_of(made), place)


def of_kind(kind: str) -> dict[str, Any]:
    """Name -> class of each that can stand where `kind` is wanted; none if it is itself a class.

    A class is named by its symbols, and by its own name with or without that of its kind.
    """
    found: dict[str, Any] = {}
    for name, made in FACTS["classes"].items():
        own = name.rpartition(".")[2]
        if kind in made["kinds"] and own != kind:
            names = {*made["symbols"], own, own.removesuffix(kind), own.removesuffix(f"{kind}Impl")}
            found |= {n[:1].lower() + n[1:]: made for n in names if n}
    return found


def attributes_of(made: dict[str, Any]) -> dict[str, str]:
    return {**made["needs"], **made["takes"], **made.get("casc", {})}


def test_every_attribute_is_one_of_jenkins(casc: dict[str, Any]) -> None:
    assert problems(casc) == []
    for before, after, said in (
        ("numExecutors: 0", "numExecutor: 0", "jenkins: unknown attribute numExecutor"),
        ("contentSecurityPolicy:", "csp:", "security.csp: unknown element"),
        ("directEntry", "direct", "Jenkins has no PrivateKeySource direct"),
        # With this line, which cores before 2.543 took, the boot of 2.568.2 ended.
        (
            'crumbIssuer: "standard"',
            "crumbIssuer: {standard: {excludeClientIPFromCrumb: false}}",
            "jenkins.crumbIssuer: unknown attribute excludeClientIPFromCrumb",
        ),
    ):
        assert before in CASC
        assert any(said in one for one in problems(yaml.safe_load(CASC.replace(before, after))))


def test_nothing_is_built_on_the_controller_and_nobody_is_let_in(casc: dict[str, Any]) -> None:
    jenkins = casc["jenkins"]
    assert jenkins["numExecutors"] == 0
    assert jenkins["slaveAgentPort"] == -1
    assert jenkins["crumbIssuer"] == "standard"
    assert jenkins["securityRealm"]["local"]["allowsSignup"] is False
    granted = {
        next(iter(entry.values()))["name"]: next(iter(entry.values()))["permissions"]
        for entry in jenkins["authorizationStrategy"]["globalMatrix"]["entries"]
    }
    admins = [name for name, what in granted.items() if "Overall/Administer" in what]
    assert admins == ["${JENKINS_ADMIN_ID:-admin}"]
    assert "anonymous" not in granted
    assert set(granted["authenticated"]) == {
        *("Overall/Read", "Job/Build", "Job/Cancel", "Job/Read", "View/Read"),
    }
    assert casc["security"]["contentSecurityPolicy"]["enforce"] is True
    assert "hudson.model.DirectoryBrowserSupport.CSP" not in (ROOT / "Dockerfile").read_text()


def test_commands_know_every_setting_that_builds_get(casc: dict[str, Any]) -> None:
    """A variable that begins as settings do and is none would end every stage of every build."""
    jenkins = casc["jenkins"]
    agents = [kind["permanent"] for kind in jenkins["nodes"]]
    properties = [
        *jenkins["globalNodeProperties"],
        *(one for agent in agents for one in agent.get("nodeProperties", [])),
    ]
    names = [variable["key"] for one in properties for variable in one["envVars"]["env"]]
    assert "COMPILEWATCH_OUTPUT_DIR" in names
    load_settings(environ=dict.fromkeys(names, "x"))


def test_secrets_come_from_outside(casc: dict[str, Any]) -> None:
    for user in casc["jenkins"]["securityRealm"]["local"]["users"]:
        assert user["password"] == "${JENKINS_ADMIN_PASSWORD}"
    for one in casc["credentials"]["system"]["domainCredentials"][0]["credentials"]:
        (kind, given), *_ = one.items()
        secret = given.get("secret") or given["privateKeySource"]["directEntry"]["privateKey"]
        assert re.fullmatch(r"\$\{[^}]+\}", secret), kind


def test_the_labels_and_credentials_that_the_jenkinsfile_uses_exist(casc: dict[str, Any]) -> None:
    text = (ROOT / "Jenkinsfile").read_text(encoding="utf-8")
    text += (FOLDER / "papers.Jenkinsfile").read_text(encoding="utf-8")
    labels = set(re.findall(r"(?:node\(|label |sweepOn\(|label: )'([a-z]+)'", text))
    nodes = [node["permanent"] for node in casc["jenkins"]["nodes"]]
    assert labels == {label for node in nodes for label in node["labelString"].split()}
    # The stored runs are in one place.
    assert len([node for node in nodes if "home" in node["labelString"].split()]) == 1
    wanted = set(re.findall(r"credentialsId: '([^']+)'", text))
    wanted |= {node["launcher"]["ssh"]["credentialsId"] for node in nodes}
    entries = casc["credentials"]["system"]["domainCredentials"][0]["credentials"]
    assert wanted == {next(iter(entry.values()))["id"] for entry in entries}


def test_every_variable_is_given_by_compose(casc: dict[str, Any]) -> None:
    compose = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))
    service = compose["services"]["jenkins"]
    given = {*service["environment"], *service["secrets"]}
    text = CASC + (FOLDER / "jobs.groovy").read_text(encoding="utf-8")
    named = set(re.findall(r"\$\{([A-Z_]+)[:}]", re.sub(r"^\s*#.*$", "", text, flags=re.MULTILINE)))
    named |= set(re.findall(r"getenv\('([A-Z_]+)'\)", text))
    assert named <= given
    assert given == named
    assert "/run/agent-keys/agents" in CASC
    assert "controller-keys:/run/agent-keys:ro" in service["volumes"]
    assert "controller-keys:/private" in compose["services"]["keys"]["volumes"]
    # The private half is no agent's business.
    assert not any("controller-keys" in v for v in compose["services"]["agent"]["volumes"])


def test_jobs_are_seeded_and_plugins_pinned(casc: dict[str, Any]) -> None:
    docker = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    (job,) = casc["jobs"]
    assert Path(job["file"]).parent == Path("/usr/share/compilewatch")
    assert "stack/jenkins/jobs.groovy /usr/share/compilewatch/" in docker
    assert "runSetupWizard=false" in docker
    plugins = (FOLDER / "plugins.txt").read_text(encoding="utf-8").splitlines()
    assert plugins == sorted(plugins)
    assert all(re.fullmatch(r"[a-z-]+:[0-9][\w.-]*", line) for line in plugins)


def tool(name: str) -> str:
    found = shutil.which(name, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if found is None:
        advice = f"{name} is missing: make setup-dev"
        if os.environ.get("CI"):
            pytest.fail(advice)
        pytest.skip(advice)
    return found


def test_the_dockerfile_is_clean() -> None:
    done = subprocess.run(
        [tool("hadolint"), ROOT / "Dockerfile"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_what_images_copy_is_not_ignored() -> None:
    kept = {
        line[1:]
        for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
        if line.startswith("!")
    }
    copied = re.findall(
        r"^COPY (?!--from)(.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE
    )
    assert {name for line in copied for name in line.split()} == kept
    assert all((ROOT / name).exists() for name in kept)


def test_keys_are_made_once_and_the_private_half_stays(tmp_path: Path) -> None:
    """The script itself, on folders of the test; ownership is the container's affair."""
    services.program("ssh-keygen", package="openssh-client")
    text = (FOLDER / "keys.sh").read_text(encoding="utf-8")
    for name in ("private", "public"):
        (tmp_path / name).mkdir()
        text = text.replace(f"/{name}", f"{tmp_path}/{name}")
    fake = tmp_path / "chown"
    fake.write_text("#!/bin/sh\n")
    fake.chmod(0o755)
    environ = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    made = []
    for _ in range(2):
        subprocess.run(["sh", "-c", text], check=True, env=environ)
        made.append((tmp_path / "private" / "agents").read_bytes())
    assert made[0] == made[1]
    assert [path.name for path in (tmp_path / "public").iterdir()] == ["authorized_keys"]
    public = (tmp_path / "public" / "authorized_keys").read_text()
    assert public.startswith("ssh-ed25519 ")
