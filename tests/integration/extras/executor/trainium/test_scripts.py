"""The scripts of the instance, where root's tools and the list of processes are doubles."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from botocore import xform_name

from tests.aws import LOADER
from tests.services import program

SCRIPTS = Path(__file__).parents[5] / "scripts"
AGENT = SCRIPTS / "trainium_agent.sh"
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
        self.neuron_ls = self.root / "opt" / "aws" / "neuron" / "bin" / "neuron-ls"
        self.release = self.root / "etc" / "os-release"
        for file in (self.bin / "x", self.release, self.neuron_ls, self.source / "scripts" / "x"):
            file.parent.mkdir(parents=True)
        self.release.write_text("ID=ubuntu\nVERSION_CODENAME=noble\nPRETTY_NAME='Ubuntu 24.04'\n")
        executable(self.neuron_ls, "")
        for name, body in DOUBLES.items():
            executable(self.bin / name, f'echo "{name} $*" >>"{self.log}"\n{body}')
        subprocess.run(["git", "init", "-q", self.source], check=True)
        self.commit("first")

    def commit(self, text: str) -> None:
        """A version of the checkout whose setup makes a `compilewatch` that notes its call."""
        executable(
            self.source / "scripts" / "setup.sh",
            f"# {text}\n"
            'cd "$(dirname "$0")/.." && mkdir -p .venv/bin\n'
            'echo "index $TORCH_INDEX" >"$HOME/setup"\n'
            'printf \'#!/bin/sh\\necho "$*" >"$HOME/called"\\n\' >.venv/bin/compilewatch\n'
            "chmod +x .venv/bin/compilewatch",
        )
        git = ["git", "-C", str(self.source), "-c", "user.name=a", "-c", "user.email=a@b"]
        for command in (["add", "-A"], ["commit", "-qm", text]):
            subprocess.run([*git, *command], check=True)

    def make(
        self, *arguments: str, key: str = KEY, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        path = {"PATH": f"{self.bin}:/usr/bin:/bin", "ROOT": str(self.root), "HOME": "/nowhere"}
        command = [str(AGENT), "--key", key, "--source", str(self.source), *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=path | variables)

    def calls(self, program: str = "") -> list[str]:
        return [row for row in self.log.read_text().splitlines() if row.startswith(program)]


def executable(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    return Instance(tmp_path)


def test_a_dry_run_says_all_and_does_nothing(instance: Instance) -> None:
    instance.neuron_ls.unlink()
    done = instance.make("--dry-run", "--idle-minutes", "45")
    assert done.returncode == 0, done.stderr
    for expected in (
        "signed-by=/etc/apt/keyrings/neuron.gpg] https://apt.repos.neuron.amazonaws.com noble main",
        "+ write /etc/systemd/system/compilewatch-idle.timer (mode 644):",
        "Environment=IDLE_MINUTES=45 IDLE_USER=jenkins",
        "compilewatch/.venv/bin/compilewatch env create neuron",
    ):
        assert expected in done.stdout
    assert [path for path in instance.root.rglob("*") if path.is_file()] == [instance.release]
    assert {call.split()[0] for call in instance.calls()} <= {"id", "dpkg-query"}


def test_a_fresh_instance_becomes_an_agent_and_again_only_what_differs_is_changed(
    instance: Instance, tmp_path: Path
) -> None:
    (tmp_path / "key.pub").write_text(f"{KEY}\n")
    done = instance.make(key=str(tmp_path / "key.pub"))
    assert done.returncode == 0, done.stderr
    keys = instance.home / ".ssh" / "authorized_keys"
    assert keys.read_text() == f"restrict {KEY}\n"
    assert [p.stat().st_mode & 0o777 for p in (keys, keys.parent)] == [0o600, 0o700]
    assert (instance.home / "agent").is_dir()
    assert (instance.home / "called").read_text() == "env create neuron\n"
    assert (instance.home / "setup").read_text() == "index https://download.pytorch.org/whl/cpu\n"
    idle = instance.root / "usr/local/sbin/compilewatch-idle"
    assert idle.read_text() == (SCRIPTS / "idle_shutdown.sh").read_text()
    assert os.access(idle, os.X_OK)
    units = instance.root / "etc/systemd/system"
    service = (units / "compilewatch-idle.service").read_text()
    assert "ExecStart=/usr/local/sbin/compilewatch-idle\n" in service
    assert "Environment=IDLE_MINUTES=60 IDLE_USER=jenkins\n" in service
    assert "systemctl enable --now compilewatch-idle.timer" in instance.calls()
    assert instance.calls("apt-get") == [], "all was there"

    before = (units / "compilewatch-idle.timer").stat().st_mtime_ns
    instance.log.unlink()
    instance.commit("second")
    again = instance.make("--idle-minutes", "30")
    assert again.returncode == 0, again.stderr
    assert "/usr/local/sbin/compilewatch-idle is up to date" in again.stdout
    assert "writing /etc/systemd/system/compilewatch-idle.service" in again.stdout
    assert (units / "compilewatch-idle.timer").stat().st_mtime_ns == before
    assert instance.calls("useradd") == []
    setup = instance.home / "compilewatch" / "scripts" / "setup.sh"
    assert "# second" in setup.read_text(), "the checkout follows its source"


def test_the_sdk_is_installed_first_and_the_executor_as_a_unit_with_secrets_of_its_own(
    instance: Instance,
) -> None:
    instance.neuron_ls.unlink()
    offline = instance.make(OFFLINE="yes")
    assert offline.returncode != 0
    assert "== done" not in offline.stdout
    assert not (instance.root / "made").exists(), "nothing after the step that failed"
    done = instance.make("--executor-port", "8443", "--sdk", "xla")
    assert done.returncode == 0, done.stderr
    assert (instance.home / "called").read_text() == "env create neuron-xla\n"
    sources = instance.root / "etc/apt/sources.list.d/neuron.list"
    assert sources.read_text().endswith("repos.neuron.amazonaws.com noble main\n")
    (installed,) = instance.calls("apt-get install")
    assert installed.endswith("aws-neuronx-dkms aws-neuronx-runtime-lib aws-neuronx-tools")

    unit = (instance.root / "etc/systemd/system/compilewatch-executor.service").read_text()
    for expected in (
        *("User=jenkins", "--port 8443 --environment neuron-xla ", "--token-file %d/token"),
        "IPAddressDeny=169.254.169.254",
    ):
        assert expected in unit
    token, key = (instance.root / "etc/compilewatch" / f"executor.{n}" for n in ("token", "key"))
    secret = token.read_text()
    assert len(secret.strip()) == 64
    assert [path.stat().st_mode & 0o077 for path in (token, key)] == [0, 0]
    assert instance.calls("apparmor_parser -r")
    again = instance.make("--executor-port", "8443", "--sdk", "xla")
    assert "compilewatch-executor.service is up to date" in again.stdout
    assert token.read_text() == secret


@pytest.mark.parametrize(
    ("key", "arguments", "message"),
    [
        ("", [], "name the controller's public key with --key"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----", [], "not a public SSH key"),
        (f'command="sh" {KEY}\n{KEY}', [], "not a public SSH key"),
        (KEY, ["--sdk", "jax"], "jax is neither native (TorchNeuron) nor xla"),
        (KEY, ["--user", "root"], "without privileges"),
        (KEY, ["--user", "../x"], "not a valid user name"),
        (KEY, ["--idle-minutes", "1h"], "not an integer"),
        (KEY, ["--executor-port", "80"], "not a port above 1023"),
        (KEY, ["--kye"], "unknown option --kye"),
        (KEY, ["--user"], "--user needs a value"),
    ],
)
def test_wrong_arguments(instance: Instance, key: str, arguments: list[str], message: str) -> None:
    done = instance.make("--dry-run", *arguments, key=key)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert message in done.stderr


def test_it_rejects_a_user_with_privileges_and_what_is_no_ubuntu(instance: Instance) -> None:
    done = instance.make(GROUPS_OF_USER="sudo")
    assert done.returncode == 2
    assert "is in the privileged group sudo" in done.stderr
    assert not (instance.home / ".ssh").exists()
    instance.release.write_text("ID=amzn\nPRETTY_NAME='Amazon Linux 2023'\n")
    done = instance.make()
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "needs Ubuntu, not Amazon Linux 2023" in done.stderr


# --- the instance itself, where the AWS CLI is a double ---

AWS = """
[ "$AWS_DEFAULT_REGION" = us-west-2 ] || exit 255
echo "$*" >>"$LOG"
case $2 in
describe-instances) echo "$TAGGED" ;;
describe-images) printf "$IMAGE\\n" ;;
run-instances) echo i-0123456789abcdef0 ;;
esac
"""
IMAGE = r"ami-1\t/dev/sda1\tDeep Learning AMI Neuron torch-neuronx 2.14.0 (Ubuntu 24.04) 20261019"


def create(folder: Path, *arguments: str, **variables: str) -> tuple[int, str, list[str]]:
    """Exit status, output, and the calls of the AWS CLI."""
    executable(folder / "aws", AWS)
    log = folder / "log"
    given = {"PATH": f"{folder}:/usr/bin:/bin", "LOG": str(log), "IMAGE": IMAGE, "TAGGED": ""}
    given["AWS_REGION"] = "us-west-2"
    done = subprocess.run(
        [SCRIPTS / "trainium_create.sh", *arguments],
        capture_output=True,
        text=True,
        env=given | variables,
    )
    calls = log.read_text().splitlines() if log.exists() else []
    return done.returncode, done.stdout + done.stderr, calls


def test_an_instance_is_created_with_aws_own_image_for_torchneuron(tmp_path: Path) -> None:
    status, output, (*_, call) = create(tmp_path, "--", "--key-name", "mine")
    assert status == 0, output
    assert output.startswith("trn2.3xlarge with 512 GiB and ami-1, Deep Learning AMI Neuron torch")
    assert call.startswith("ec2 run-instances --image-id ami-1 --instance-type trn2.3xlarge ")
    assert "DeviceName=/dev/sda1,Ebs={VolumeSize=512,VolumeType=gp3}" in call
    assert "Tags=[{Key=compilewatch,Value=trainium}]" in call
    assert call.endswith("--key-name mine")
    members = LOADER.load_service_model("ec2", "service-2")["shapes"]["RunInstancesRequest"]
    known = {xform_name(name, "-") for name in members["members"]} | {"count", "output", "query"}
    assert set(re.findall(r" --([a-z-]+)", call)) <= known


def test_another_sdk_has_another_image_and_a_dry_run_creates_nothing(tmp_path: Path) -> None:
    status, output, calls = create(tmp_path, "--sdk", "xla", "--disk-gib", "600", "--dry-run")
    assert (status, output.split(" GiB")[0]) == (0, "trn1.2xlarge with 600")
    assert "Name=name,Values=Deep Learning Base Neuron AMI*Ubuntu 24.04*" in calls[-1]
    assert [call.split()[1] for call in calls] == ["describe-instances", "describe-images"]


@pytest.mark.parametrize(
    ("arguments", "variables", "message"),
    [
        ([], {"TAGGED": "i-1"}, "i-1 has the tag compilewatch=trainium already"),
        ([], {"IMAGE": "None"}, "AWS offers no image 'Deep Learning AMI Neuron torch-neuronx 2.14"),
        (["--sdk", "jax"], {}, "jax is neither native (TorchNeuron) nor xla"),
        (["--disk-gib", "much"], {}, "much is not a number of GiB"),
        (["--tag", "mine"], {}, "mine is not of the form NAME=VALUE"),
        (["--key-name", "mine"], {}, "put options of run-instances after --"),
    ],
)
def test_an_instance_is_not_created_twice_nor_from_nothing(
    tmp_path: Path, arguments: list[str], variables: dict[str, str], message: str
) -> None:
    status, output, calls = create(tmp_path, *arguments, **variables)
    assert (status, output.count("\n")) == (2, 1)
    assert message in output
    assert not any("run-instances" in call for call in calls)


# --- the idle timer ---

HOUR = 3600

PLUMBING = """\
root      /sbin/init
root      /usr/lib/systemd/systemd-logind
root      sshd: /usr/sbin/sshd -D [listener] 0 of 10-100 startups
root      sshd: jenkins [priv]
jenkins  sshd: jenkins@notty
jenkins  /usr/lib/systemd/systemd --user
jenkins  (sd-pam)
jenkins  bash -c cd "/home/jenkins/agent" && java  -jar remoting.jar -workDir /home/x
jenkins  java -jar remoting.jar -workDir /home/jenkins/agent -jar-cache /home/x
jenkins  /usr/lib/openssh/sftp-server
root      /bin/sh /usr/local/sbin/compilewatch-idle
ubuntu    -bash
jenkins  /home/jenkins/compilewatch/.venv/bin/python .venv/bin/compilewatch executor serve --port 1
"""
"""An idle instance to which a Jenkins controller is connected (and a screen left behind)."""


class Machine:
    """What the script sees, and whether it shut that down."""

    def __init__(self, folder: Path) -> None:
        self.processes, self.last, self.down = (folder / n for n in ("ps", "last", "down"))

    def look(
        self, processes: str = PLUMBING, *, uptime: int = 2 * HOUR, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        self.processes.write_text(processes)
        doubles = {
            "PATH": "/usr/bin:/bin",
            "IDLE_LAST": str(self.last),
            "IDLE_PS": f"cat {self.processes}",
            "IDLE_UPTIME": f"echo {uptime}",
            "IDLE_SHUTDOWN": f"touch {self.down}",
        }
        command = ["sh", str(SCRIPTS / "idle_shutdown.sh")]
        return subprocess.run(command, capture_output=True, text=True, env=doubles | variables)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_an_idle_machine_goes_down_after_an_hour(machine: Machine) -> None:
    """The last look is with the real ps and uptime: whatever it finds, it must find it."""
    machine.last.write_text("yesterday\n")  # a broken note counts from the boot
    assert machine.look(uptime=HOUR - 60).stdout == "idle for 59 of 60 minutes\n"
    assert not machine.down.exists()
    assert machine.look(uptime=HOUR).stdout == "idle for 60 minutes: shutting down\n"
    assert machine.down.exists()
    program("ps", package="procps")
    done = machine.look(IDLE_PS="", IDLE_UPTIME="", IDLE_MINUTES="9999999")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(("at work: ", "idle for "))


@pytest.mark.parametrize(
    "work",
    [
        "jenkins  /home/jenkins/.cache/c/venv/bin/python -P /x/bootstrap.py",
        "jenkins  sh -c ({ while [ -d '/home/jenkins/agent/workspace/x' ]; do sleep 3",
        "root      /usr/bin/python3 /opt/x/bin/neuronx-cc compile model.hlo_module.pb",
        "ubuntu    /home/ubuntu/.venv/bin/python /home/ubuntu/.venv/bin/compilewatch sweep",
        "ubuntu    python -P /x/bootstrap.py compilewatch.worker.process.server",
        "ubuntu    sshd-session: ubuntu@notty",
        "jenkins  sshd: jenkins@pts/1",
    ],
)
def test_work_keeps_it_up_and_begins_the_wait_anew(machine: Machine, work: str) -> None:
    busy = machine.look(f"{PLUMBING}{work}\n", uptime=10 * HOUR)
    assert busy.returncode == 0
    assert busy.stdout.startswith(f"at work: {work.split(maxsplit=1)[1][:60]}")
    machine.look(uptime=11 * HOUR - 1)
    assert not machine.down.exists()
    machine.look(uptime=11 * HOUR)
    assert machine.down.exists()


def test_what_cannot_be_seen_or_noted_is_not_idle_and_settings_are_checked(
    machine: Machine,
) -> None:
    for broken in ("false", "true"):
        done = machine.look(uptime=9 * HOUR, IDLE_PS=broken)
        assert done.returncode == 1
        assert "it is unknown" in done.stderr
    assert machine.look(uptime=9 * HOUR, IDLE_UPTIME="false").returncode == 1
    assert machine.look("jenkins  make\n", IDLE_LAST="/nowhere/last").returncode == 1
    assert machine.look(IDLE_MINUTES="1.5").returncode == 2
    assert "switched off" in machine.look(uptime=99 * HOUR, IDLE_MINUTES="0").stdout
    # Another agent's user: compilewatch's processes are then those of anyone.
    assert machine.look("ci  make sweep\n", IDLE_USER="ci").stdout.startswith("at work")
    assert not machine.down.exists()
    machine.look("ci  make sweep\n", IDLE_MINUTES="1", IDLE_LAST="/nowhere/last")
    assert machine.down.exists()
