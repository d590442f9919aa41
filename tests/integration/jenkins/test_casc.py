"""What Jenkins is configured with, against what core and plugins document; images; compose."""

from __future__ import annotations

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

from tests import services
from tests.integration.jenkins.conftest import ROOT

FOLDER = ROOT / "stack" / "jenkins"
CASC = (FOLDER / "casc.yaml").read_text(encoding="utf-8")

# Attributes by place; a list's entries stand as []. Sources, read 2026-11-21 (repositories of
# github.com/jenkinsci unless said): configuration-as-code-plugin demos/jenkins/jenkins.yaml,
# demos/build_agents, demos/embedded-userdatabase, demos/global-matrix-auth, demos/credentials and
# docs/features/secrets.adoc; matrix-auth-plugin's and ssh-agents-plugin's tests of JCasC; job-dsl's
# page on JCasC; jenkins-docs/quickstart-tutorials#2186 for contentSecurityPolicy, which takes
# `enforce` and `advanced` only; hudson.slaves.RetentionStrategy.
SSH = "jenkins.nodes[].permanent.launcher.ssh"
PERMANENT = "jenkins.nodes[].permanent"
CREDENTIALS = "credentials.system.domainCredentials[].credentials[]"
DOCUMENTED: dict[str, set[str]] = {
    "": {"jenkins", "security", "credentials", "unclassified", "jobs"},
    "jenkins": {
        *("systemMessage", "numExecutors", "mode", "slaveAgentPort", "crumbIssuer", "nodes"),
        *("securityRealm", "authorizationStrategy", "globalNodeProperties"),
    },
    "jenkins.crumbIssuer": {"standard"},
    "jenkins.crumbIssuer.standard": {"excludeClientIPFromCrumb"},
    "jenkins.securityRealm": {"local"},
    "jenkins.securityRealm.local": {"allowsSignup", "users", "enableCaptcha"},
    "jenkins.securityRealm.local.users[]": {"id", "name", "description", "password", "properties"},
    "jenkins.authorizationStrategy": {"globalMatrix"},
    "jenkins.authorizationStrategy.globalMatrix": {"entries"},
    "jenkins.authorizationStrategy.globalMatrix.entries[]": {"user", "group"},
    "jenkins.authorizationStrategy.globalMatrix.entries[].user": {"name", "permissions"},
    "jenkins.authorizationStrategy.globalMatrix.entries[].group": {"name", "permissions"},
    "jenkins.globalNodeProperties[]": {"envVars"},
    "jenkins.globalNodeProperties[].envVars": {"env"},
    "jenkins.globalNodeProperties[].envVars.env[]": {"key", "value"},
    "jenkins.nodes[]": {"permanent"},
    PERMANENT: {
        *("name", "labelString", "mode", "numExecutors", "remoteFS", "retentionStrategy"),
        *("nodeProperties", "launcher", "nodeDescription"),
    },
    f"{PERMANENT}.nodeProperties[]": {"envVars"},
    f"{PERMANENT}.nodeProperties[].envVars": {"env"},
    f"{PERMANENT}.nodeProperties[].envVars.env[]": {"key", "value"},
    f"{PERMANENT}.launcher": {"ssh"},
    SSH: {
        *("host", "port", "credentialsId", "launchTimeoutSeconds", "maxNumRetries"),
        *("retryWaitTime", "sshHostKeyVerificationStrategy", "javaPath", "jvmOptions"),
    },
    f"{SSH}.sshHostKeyVerificationStrategy": {"manuallyTrustedKeyVerificationStrategy"},
    f"{SSH}.sshHostKeyVerificationStrategy.manuallyTrustedKeyVerificationStrategy": {
        "requireInitialManualTrust"
    },
    "security": {"contentSecurityPolicy"},
    "security.contentSecurityPolicy": {"enforce", "advanced"},
    "credentials": {"system"},
    "credentials.system": {"domainCredentials"},
    "credentials.system.domainCredentials[]": {"credentials", "domain"},
    CREDENTIALS: {"basicSSHUserPrivateKey", "string"},
    f"{CREDENTIALS}.basicSSHUserPrivateKey": {
        *("scope", "id", "username", "description", "privateKeySource", "passphrase"),
    },
    f"{CREDENTIALS}.basicSSHUserPrivateKey.privateKeySource": {"directEntry"},
    f"{CREDENTIALS}.basicSSHUserPrivateKey.privateKeySource.directEntry": {"privateKey"},
    f"{CREDENTIALS}.string": {"scope", "id", "description", "secret"},
    "unclassified": {"location", "mailer"},
    "unclassified.mailer": {"smtpHost", "smtpPort"},
    "unclassified.location": {"url", "adminAddress"},
    "jobs[]": {"script", "file", "url"},
}


@pytest.fixture(scope="module")
def casc() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(CASC)
    return found


def unknown(value: Any, place: str = "") -> Iterator[str]:
    """Attributes that are not in the table, with their place."""
    if isinstance(value, list):
        for entry in value:
            yield from unknown(entry, f"{place}[]")
    elif isinstance(value, dict):
        for key, below in value.items():
            inner = f"{place}.{key}".lstrip(".")
            if key not in DOCUMENTED.get(place, set()):
                yield inner
            yield from unknown(below, inner)


def test_every_attribute_is_documented(casc: dict[str, Any]) -> None:
    assert list(unknown(casc)) == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("numExecutors: 0", "numExecutor: 0"),
        ("entries:", "grantedPermissions:"),
        ("enforce: true", "header: true"),
        ("host:", "hostname:"),
        ("jobs:", "job:"),
        ("directEntry", "direct"),
    ],
)
def test_an_attribute_that_does_not_exist_is_found(before: str, after: str) -> None:
    assert before in CASC
    assert list(unknown(yaml.safe_load(CASC.replace(before, after, 1))))


def test_nothing_is_built_on_the_controller_and_nobody_is_let_in(casc: dict[str, Any]) -> None:
    jenkins = casc["jenkins"]
    assert jenkins["numExecutors"] == 0
    assert jenkins["slaveAgentPort"] == -1
    assert jenkins["crumbIssuer"]["standard"] == {"excludeClientIPFromCrumb": False}
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


def test_secrets_come_from_outside(casc: dict[str, Any]) -> None:
    for user in casc["jenkins"]["securityRealm"]["local"]["users"]:
        assert user["password"] == "${JENKINS_ADMIN_PASSWORD}"
    for one in casc["credentials"]["system"]["domainCredentials"][0]["credentials"]:
        (kind, given), *_ = one.items()
        secret = given.get("secret") or given["privateKeySource"]["directEntry"]["privateKey"]
        assert re.fullmatch(r"\$\{[^}]+\}", secret), kind


def test_the_labels_and_credentials_that_the_jenkinsfile_uses_exist(casc: dict[str, Any]) -> None:
    text = (ROOT / "Jenkinsfile").read_text(encoding="utf-8")
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
    named = set(re.findall(r"\$\{([A-Z_]+)[:}]", "\n".join(uncommented(text))))
    named |= set(re.findall(r"getenv\('([A-Z_]+)'\)", text))
    assert named <= given
    assert given == named
    assert "/run/agent-keys/agents" in CASC
    assert "controller-keys:/run/agent-keys:ro" in service["volumes"]
    assert "controller-keys:/private" in compose["services"]["keys"]["volumes"]
    # The private half is no agent's business.
    assert not any("controller-keys" in v for v in compose["services"]["agent"]["volumes"])


def uncommented(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.lstrip().startswith("#")]


def test_jobs_are_seeded_and_plugins_pinned(casc: dict[str, Any]) -> None:
    docker = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    (job,) = casc["jobs"]
    assert Path(job["file"]).parent == Path("/usr/share/compilewatch")
    assert "stack/jenkins/jobs.groovy /usr/share/compilewatch/" in docker
    assert "runSetupWizard=false" in docker
    script = (FOLDER / "jobs.groovy").read_text(encoding="utf-8")
    names = re.findall(r"pipelineJob\('([^']+)'\)", script)
    assert names == ["compilewatch", "papers"]
    # A build of `papers` costs money, so that only people or PAPERS_SCHEDULE start one.
    assert re.findall(r"queue\('([^']+)'\)", script) == ["compilewatch"]
    for path in re.findall(r"scriptPath\('([^']+)'\)", script):
        assert (ROOT / path).is_file()
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


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    done = subprocess.run(
        [
            tool("docker-compose"),
            "-f",
            FOLDER / "compose.yaml",
            "--profile",
            "*",
            "config",
            "--format",
            "json",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_only_the_local_machine_reaches_jenkins(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        for port in service.get("ports", []):
            assert (name, port["host_ip"]) == ("jenkins", "127.0.0.1")
        assert not any("docker.sock" in str(v) for v in service.get("volumes", []))
        assert not service.get("privileged")


def test_what_must_be_root_is_said_and_no_more(compose: dict[str, Any]) -> None:
    held = {name for name, s in compose["services"].items() if s.get("cap_drop") != ["ALL"]}
    assert held == {"agent", "keys"}
    assert all(s.get("security_opt") for s in compose["services"].values())


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
