"""What Jenkins is configured with, against the sources of core and plugins, images and compose."""

import json
import os
import re
import subprocess
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


def problems(casc: dict[str, Any]) -> Iterator[str]:
    """What the configuration names and Jenkins does not have, by place."""
    roots = FACTS["roots"]
    for root, value in casc.items():
        if isinstance(value, list):
            yield from wrong(value, roots[root][""], root)
            continue
        # A category of global configuration has elements that each plugin adds.
        places = {root: value} if root in roots else {f"{root}.{k}": v for k, v in value.items()}
        for place, inner in places.items():
            if place in roots:
                yield from wrong_attributes(inner, roots[place], place)
            else:
                yield f"{place}: unknown element"


def wrong_attributes(
    values: dict[str, Any], attributes: dict[str, str], place: str
) -> Iterator[str]:
    for name, value in values.items():
        if name in attributes:
            yield from wrong(value, attributes[name], f"{place}.{name}")
        else:
            yield f"{place}: unknown attribute {name}"


def wrong(value: Any, kind: str, place: str) -> Iterator[str]:
    """What is wrong with a value of an attribute whose type, or that of its entries, is `kind`.

    A class that can stand for a kind goes by its symbols, and by its own name with or without that
    of the kind.
    """
    if isinstance(value, list):
        for number, entry in enumerate(value):
            yield from wrong(entry, kind, f"{place}[{number}]")
        return
    named: dict[str, dict[str, str]] = {}
    own = None
    for full_name, facts in FACTS["classes"].items():
        attributes = {**facts["needs"], **facts["takes"], **facts.get("casc", {})}
        name = full_name.rpartition(".")[2]
        if name == kind:
            own = attributes
        elif kind in facts["kinds"]:
            names = (name, name.removesuffix(kind), name.removesuffix(f"{kind}Impl"))
            named |= {n[:1].lower() + n[1:]: attributes for n in (*facts["symbols"], *names)}
    if named:
        symbol, inner = (value, {}) if isinstance(value, str) else next(iter(value.items()))
        if symbol not in named:
            yield f"{place}: Jenkins has no {kind} {symbol}"
        elif isinstance(inner, dict):
            yield from wrong_attributes(inner, named[symbol], place)
    elif isinstance(value, dict):
        assert own is not None, kind
        yield from wrong_attributes(value, own, place)


def test_every_attribute_is_one_of_jenkins(casc: dict[str, Any]) -> None:
    assert list(problems(casc)) == []
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
    assert (jenkins["numExecutors"], jenkins["slaveAgentPort"]) == (0, -1)
    assert jenkins["crumbIssuer"] == "standard"
    assert jenkins["securityRealm"]["local"]["allowsSignup"] is False
    matrix = jenkins["authorizationStrategy"]["globalMatrix"]["entries"]
    rights = [next(iter(entry.values())) for entry in matrix]
    assert {one["name"]: one["permissions"] for one in rights} == {
        "${JENKINS_ADMIN_ID:-admin}": ["Overall/Administer"],
        "authenticated": ["Overall/Read", "Job/Build", "Job/Cancel", "Job/Read", "View/Read"],
    }
    assert casc["security"]["contentSecurityPolicy"]["enforce"] is True
    secrets = [user["password"] for user in jenkins["securityRealm"]["local"]["users"]]
    secrets += [
        one.get("secret") or one["privateKeySource"]["directEntry"]["privateKey"]
        for one in credentials(casc)
    ]
    assert all(re.fullmatch(r"\$\{[^}]+\}", secret) for secret in secrets)


def credentials(casc: dict[str, Any]) -> list[dict[str, Any]]:
    (domain,) = casc["credentials"]["system"]["domainCredentials"]
    return [next(iter(entry.values())) for entry in domain["credentials"]]


def test_commands_know_every_setting_that_builds_get(casc: dict[str, Any]) -> None:
    """A variable that begins as settings do and is none would end every stage of every build."""
    properties = [*casc["jenkins"]["globalNodeProperties"]]
    for kind in casc["jenkins"]["nodes"]:
        properties += kind["permanent"].get("nodeProperties", [])
    names = [variable["key"] for one in properties for variable in one["envVars"]["env"]]
    assert "COMPILEWATCH_OUTPUT_DIR" in names
    load_settings(environ=dict.fromkeys(names, "x"))


def test_the_labels_and_credentials_that_the_jenkinsfile_uses_exist(casc: dict[str, Any]) -> None:
    text = (ROOT / "Jenkinsfile").read_text(encoding="utf-8")
    text += (FOLDER / "papers.Jenkinsfile").read_text(encoding="utf-8")
    labels = set(re.findall(r"(?:node\(|label |sweepOn\(|label: )'([a-z]+)'", text))
    nodes = [node["permanent"] for node in casc["jenkins"]["nodes"]]
    offered = [label for node in nodes for label in node["labelString"].split()]
    assert labels == set(offered)
    assert offered.count("home") == 1, "the stored runs are in one place"
    used = set(re.findall(r"credentialsId: '([^']+)'", text))
    used |= {node["launcher"]["ssh"]["credentialsId"] for node in nodes}
    assert used == {one["id"] for one in credentials(casc)}


def test_every_variable_is_given_by_compose() -> None:
    compose = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))
    service = compose["services"]["jenkins"]
    text = CASC + (FOLDER / "jobs.groovy").read_text(encoding="utf-8")
    named = set(re.findall(r"\$\{([A-Z_]+)[:}]", re.sub(r"^\s*#.*$", "", text, flags=re.MULTILINE)))
    named |= set(re.findall(r"getenv\('([A-Z_]+)'\)", text))
    assert named == {*service["environment"], *service["secrets"]}
    assert "controller-keys:/run/agent-keys:ro" in service["volumes"]
    # The private half is no agent's business.
    assert not any("controller-keys" in v for v in compose["services"]["agent"]["volumes"])


def test_what_images_copy_is_there_and_not_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    kept = {line[1:] for line in ignored if line.startswith("!")}
    docker = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", docker, re.MULTILINE)
    assert {name for line in copied for name in line.split()} == kept
    assert all((ROOT / name).exists() for name in kept)
    plugins = (FOLDER / "plugins.txt").read_text(encoding="utf-8").splitlines()
    assert all(re.fullmatch(r"[a-z-]+:[0-9][\w.-]*", line) for line in plugins), "pinned"


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
