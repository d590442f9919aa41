"""scripts/trainium_agent.sh: what it would do, and what it does where root's tools are doubles."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[5] / "scripts" / "trainium_agent.sh"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ8= jenkins@controller"

DOUBLES = {
    "apt-get": "",
    "systemctl": "",
    "install": "",
    "apparmor_parser": "",
    "useradd": 'mkdir -p "$ROOT/home/jenkins" && touch "$ROOT/made"',
    # Nothing of AWS's is installed yet, all of Ubuntu's is.
    "dpkg-query": """
case "$*" in *aws-neuronx* | *linux-headers*) exit 1 ;; esac
echo "install ok installed"
""",
    "wget": '[ -z "$OFFLINE" ] && echo key',
    "gpg": "cat >/dev/null; while [ $# -gt 1 ]; do shift; done; echo key >$1",
    # Root, and a user that exists once it was made.
    "id": """
case "$*" in
-u) echo 0 ;;
-nG*) echo "jenkins ${GROUPS_OF_USER:-}" ;;
*) [ -e "$ROOT/made" ] ;;
esac
""",
    # As the user: the same, without the change of user.
    "runuser": """
while [ "$1" != -- ]; do shift; done
shift
exec "$@"
""",
}


class Instance:
    """A fresh machine in a folder."""

    def __init__(self, folder: Path) -> None:
        self.root, self.bin = folder / "root", folder / "bin"
        self.source, self.log = folder / "source", folder / "log"
        self.home = self.root / "home" / "jenkins"
        self.tools = self.root / "opt" / "aws" / "neuron" / "bin"
        for place in (self.root / "etc", self.bin, self.tools, self.source / "scripts"):
            place.mkdir(parents=True)
        os_release = "ID=ubuntu\nVERSION_CODENAME=noble\nPRETTY_NAME='Ubuntu 24.04'\n"
        (self.root / "etc" / "os-release").write_text(os_release)
        program(self.tools / "neuron-ls", "")
        for name, body in DOUBLES.items():
            program(self.bin / name, f'echo "{name} $*" >>"{self.log}"\n{body}')
        subprocess.run(["git", "init", "-q", self.source], check=True)
        self.commit("first")

    def commit(self, text: str) -> None:
        """A version of the checkout whose setup makes a `compilewatch` that notes its call."""
        program(
            self.source / "scripts" / "setup.sh",
            f"# {text}\n"
            'cd "$(dirname "$0")/.." && mkdir -p .venv/bin\n'
            'echo "index $TORCH_INDEX" >"$HOME/setup"\n'
            'printf \'#!/bin/sh\\necho "$*" >"$HOME/called"\\n\' >.venv/bin/compilewatch\n'
            "chmod +x .venv/bin/compilewatch",
        )
        git = ["git", "-C", str(self.source), "-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run([*git, "add", "-A"], check=True)
        subprocess.run([*git, "commit", "-qm", text], check=True)

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environ = {"PATH": f"{self.bin}:/usr/bin:/bin", "ROOT": str(self.root), "HOME": "/nowhere"}
        return subprocess.run(
            [str(SCRIPT), *arguments],
            capture_output=True,
            text=True,
            check=False,
            env=environ | variables,
            timeout=120,
        )

    def make(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return self.run("--key", KEY, "--source", str(self.source), *arguments, **variables)

    def calls(self, program: str = "") -> list[str]:
        return [row for row in self.log.read_text().splitlines() if row.startswith(program)]


def program(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    return Instance(tmp_path)


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_dry_run_says_all_and_does_nothing(instance: Instance) -> None:
    (instance.tools / "neuron-ls").unlink()
    before = files_below(instance.root)
    done = instance.make("--dry-run", "--idle-minutes", "45")
    assert done.returncode == 0, done.stderr
    for expected in (
        "+ useradd --create-home --home-dir /home/jenkins",
        "aws-neuronx-dkms aws-neuronx-runtime-lib aws-neuronx-tools",
        "signed-by=/etc/apt/keyrings/neuron.gpg] https://apt.repos.neuron.amazonaws.com noble main",
        "+ write /etc/systemd/system/compilewatch-idle.timer (mode 644):",
        "Environment=IDLE_MINUTES=45 IDLE_USER=jenkins",
        "compilewatch/.venv/bin/compilewatch env create neuron",
        "+ systemctl enable --now compilewatch-idle.timer",
    ):
        assert expected in done.stdout
    assert files_below(instance.root) == before
    assert {call.split()[0] for call in instance.calls()} <= {"id", "dpkg-query"}
    # It needs no Ubuntu and no root for this.
    environ = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "ROOT": str(instance.tools)}
    subprocess.run([SCRIPT, "--dry-run", "--key", KEY], check=True, env=environ)


def test_a_fresh_instance_becomes_an_agent_and_again_only_what_differs_is_changed(
    instance: Instance, tmp_path: Path
) -> None:
    (tmp_path / "key.pub").write_text(f"{KEY}\n")
    done = instance.make("--key", str(tmp_path / "key.pub"))
    assert done.returncode == 0, done.stderr
    keys = instance.home / ".ssh" / "authorized_keys"
    assert keys.read_text() == f"restrict {KEY}\n"
    assert [p.stat().st_mode & 0o777 for p in (keys, keys.parent)] == [0o600, 0o700]
    assert (instance.home / "agent").is_dir()
    assert (instance.home / "called").read_text() == "env create neuron\n"
    assert (instance.home / "setup").read_text() == "index https://download.pytorch.org/whl/cpu\n"
    idle = instance.root / "usr/local/sbin/compilewatch-idle"
    assert idle.read_text() == (SCRIPT.parent / "idle_shutdown.sh").read_text()
    assert os.access(idle, os.X_OK)
    units = instance.root / "etc/systemd/system"
    service = (units / "compilewatch-idle.service").read_text()
    assert "ExecStart=/usr/local/sbin/compilewatch-idle\n" in service
    assert "Environment=IDLE_MINUTES=60 IDLE_USER=jenkins\n" in service
    assert "systemctl enable --now compilewatch-idle.timer" in instance.calls()
    assert instance.calls("apt-get") == [], "all was there"

    timer = units / "compilewatch-idle.timer"
    before = timer.stat().st_mtime_ns
    instance.log.unlink()
    instance.commit("second")
    again = instance.make("--idle-minutes", "30")
    assert again.returncode == 0, again.stderr
    assert "/usr/local/sbin/compilewatch-idle is up to date" in again.stdout
    assert "writing /etc/systemd/system/compilewatch-idle.service" in again.stdout
    assert timer.stat().st_mtime_ns == before
    assert instance.calls("useradd") == []
    setup = instance.home / "compilewatch" / "scripts" / "setup.sh"
    assert "# second" in setup.read_text(), "the checkout follows its source"


def test_the_sdk_is_installed_first_and_the_executor_as_a_unit_with_secrets_of_its_own(
    instance: Instance,
) -> None:
    (instance.tools / "neuron-ls").unlink()
    offline = instance.make(OFFLINE="yes")
    assert offline.returncode != 0
    assert "== done" not in offline.stdout
    assert not (instance.root / "made").exists(), "nothing after the step that failed"
    done = instance.make("--executor-port", "8443")
    assert done.returncode == 0, done.stderr
    sources = instance.root / "etc/apt/sources.list.d/neuron.list"
    assert sources.read_text().endswith("repos.neuron.amazonaws.com noble main\n")
    (installed,) = instance.calls("apt-get install")
    assert installed.endswith("aws-neuronx-dkms aws-neuronx-runtime-lib aws-neuronx-tools")

    unit = (instance.root / "etc/systemd/system/compilewatch-executor.service").read_text()
    for expected in (
        "User=jenkins",
        "--port 8443 --environment neuron",
        "--token-file %d/token",
        "IPAddressDeny=169.254.169.254",
    ):
        assert expected in unit
    secrets = instance.root / "etc" / "compilewatch"
    token = (secrets / "executor.token").read_text()
    assert len(token.strip()) == 64
    for name in ("token", "key"):
        assert (secrets / f"executor.{name}").stat().st_mode & 0o077 == 0
    assert instance.calls("apparmor_parser -r")
    again = instance.make("--executor-port", "8443")
    assert "compilewatch-executor.service is up to date" in again.stdout
    assert (secrets / "executor.token").read_text() == token
    assert instance.make("--executor-port", "80").returncode == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name the controller's public key with --key"),
        (["--key"], "--key needs a value"),
        (["--key", "-----BEGIN OPENSSH PRIVATE KEY-----"], "not a public SSH key"),
        (["--key", f"{KEY}\n{KEY}"], "not a public SSH key"),
        (["--key", f'command="sh" {KEY}'], "not a public SSH key"),
        (["--key", KEY, "--user", "root"], "without privileges"),
        (["--key", KEY, "--user", "../x"], "not a valid user name"),
        (["--key", KEY, "--idle-minutes", "1h"], "not an integer"),
        (["--kye", KEY], "unknown option --kye"),
    ],
)
def test_wrong_arguments(instance: Instance, arguments: list[str], message: str) -> None:
    done = instance.run("--dry-run", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_it_rejects_a_user_with_privileges_and_what_is_no_ubuntu(instance: Instance) -> None:
    done = instance.make(GROUPS_OF_USER="sudo")
    assert done.returncode == 2
    assert "is in the privileged group sudo" in done.stderr
    assert not (instance.home / ".ssh").exists()
    (instance.root / "etc" / "os-release").write_text("ID=amzn\nPRETTY_NAME='Amazon Linux 2023'\n")
    done = instance.make()
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "needs Ubuntu 24.04, not Amazon Linux 2023" in done.stderr
