"""The decision of scripts/idle_shutdown.sh, by the script itself on process lists as they are."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from tests.services import program

SCRIPT = Path(__file__).parents[5] / "scripts" / "idle_shutdown.sh"
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


def look(**variables: str) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": "/usr/bin:/bin", **variables}
    return subprocess.run(
        ["sh", str(SCRIPT)], capture_output=True, text=True, check=False, env=environ
    )


class Machine:
    """What the script sees, and whether it shut that down."""

    def __init__(self, folder: Path) -> None:
        self.processes, self.last, self.down = (folder / n for n in ("ps", "last", "down"))

    def look(
        self, processes: str = PLUMBING, *, uptime: int = 2 * HOUR, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        self.processes.write_text(processes)
        doubles = {
            "IDLE_LAST": str(self.last),
            "IDLE_PS": f"cat {shlex.quote(str(self.processes))}",
            "IDLE_UPTIME": f"echo {uptime}",
            "IDLE_SHUTDOWN": f"touch {shlex.quote(str(self.down))}",
        }
        return look(**doubles | variables)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_an_idle_machine_goes_down_after_an_hour(machine: Machine) -> None:
    machine.last.write_text("yesterday\n")  # a broken note counts from the boot
    assert machine.look(uptime=HOUR - 60).stdout == "idle for 59 of 60 minutes\n"
    assert not machine.down.exists()
    assert machine.look(uptime=HOUR).stdout == "idle for 60 minutes: shutting down\n"
    assert machine.down.exists()


@pytest.mark.parametrize(
    "work",
    [
        "jenkins  /home/jenkins/.cache/c/venv/bin/python -P /x/bootstrap.py",
        "jenkins  sh -c ({ while [ -d '/home/jenkins/agent/workspace/x' ]; do sleep 3",
        "jenkins  make sweep",
        "root      /usr/bin/python3 /opt/x/bin/neuronx-cc compile model.hlo_module.pb",
        "ubuntu    /home/ubuntu/.venv/bin/python /home/ubuntu/.venv/bin/compilewatch sweep",
        "ubuntu    python -P /x/bootstrap.py compilewatch.worker.process.server",
        "ubuntu    sshd: ubuntu@pts/0",
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


def test_what_cannot_be_seen_or_noted_is_not_idle(machine: Machine) -> None:
    for broken in ("false", "true"):
        done = machine.look(uptime=9 * HOUR, IDLE_PS=broken)
        assert done.returncode == 1
        assert "it is unknown" in done.stderr
    assert machine.look(uptime=9 * HOUR, IDLE_UPTIME="false").returncode == 1
    assert machine.look("jenkins  make\n", IDLE_LAST="/nowhere/last").returncode == 1
    assert not machine.down.exists()


def test_its_settings(machine: Machine) -> None:
    assert "switched off" in machine.look(uptime=99 * HOUR, IDLE_MINUTES="0").stdout
    for wrong in ("soon", "-5", "1.5"):
        assert machine.look(IDLE_MINUTES=wrong).returncode == 2
    assert not machine.down.exists()
    # Another agent's user: compilewatch's processes are then those of anyone.
    other = "ci  make sweep\n"
    assert machine.look(other, IDLE_USER="ci").stdout.startswith("at work")
    machine.look(other, IDLE_USER="jenkins", IDLE_MINUTES="1", IDLE_LAST="/nowhere/last")
    assert machine.down.exists()


def test_it_reads_this_machine(machine: Machine) -> None:
    """The real ps and the real uptime: whatever it finds, it must find it."""
    program("ps", package="procps")
    done = look(IDLE_LAST=str(machine.last), IDLE_SHUTDOWN="true", IDLE_MINUTES="9999999")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(("at work: ", "idle for "))
