"""Real processes at the other end of a real socket."""

from __future__ import annotations

import signal
import sys

import pytest

from compilewatch.contract.messages import Ping
from compilewatch.launchers.peer import Peer

ECHO = """
import signal, socket, sys
channel = socket.socket(fileno=int(sys.argv[-1]))
print("first", flush=True)
print("last", file=sys.stderr, flush=True)
while data := channel.recv(1024):
    channel.sendall(data)
"""
DEAF = ECHO + "signal.pause()"


def peer(program: str) -> Peer:
    return Peer([sys.executable, "-c", program])


def test_what_is_sent_comes_and_a_closed_socket_ends_it() -> None:
    echo = peer(ECHO)
    echo.send(Ping())
    assert echo.receive(60.0) == [b'{"type":"ping"}']
    assert echo.receive(0.0) == []
    assert echo.last_line() == "last"
    echo.close(60.0)
    assert echo.process.returncode == 0


def test_one_that_does_not_go_is_killed() -> None:
    deaf = peer(DEAF)
    deaf.send(Ping())
    assert deaf.receive(60.0)
    deaf.close(0.1)
    assert deaf.process.returncode == -signal.SIGKILL


def test_one_that_ended_is_noticed_by_receiving() -> None:
    silent = peer("raise SystemExit(3)")
    assert silent.receive(60.0) is None
    assert silent.exit_status(60.0) == 3
    assert silent.last_line() == "no output"
    silent.send(Ping())
    silent.close(60.0)


def test_a_program_that_is_missing_is_an_os_error() -> None:
    with pytest.raises(FileNotFoundError):
        Peer(["/not/there"])
