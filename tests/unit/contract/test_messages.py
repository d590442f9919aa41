from __future__ import annotations

import socket
from pathlib import Path

import msgspec

from compilewatch import files
from compilewatch.contract import messages
from compilewatch.records import Phase


def test_lines_are_cut_where_they_end_not_where_they_arrive() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        lines = messages.Lines(ours)
        theirs.sendall(b'{"type":"pong"}\n{"ty')
        assert lines.receive() == [b'{"type":"pong"}']
        theirs.sendall(b'pe":"pong"}\n')
        assert lines.receive() == [b'{"type":"pong"}']
        lines.send(messages.Ping())
        assert theirs.recv(99) == b'{"type":"ping"}\n'
        theirs.close()
        assert lines.receive() is None


def test_messages_are_told_apart_by_their_tag() -> None:
    assert (
        msgspec.json.decode(
            msgspec.json.encode(messages.Pong()), type=messages.Ping | messages.Pong
        )
        == messages.Pong()
    )


def test_durations_end_where_the_next_phase_begins() -> None:
    marks = ((Phase.SETUP, 10.0), (Phase.CREATE, 10.5), (Phase.EAGER, 12.5))
    assert messages.durations(marks, 13.0) == {"setup": 0.5, "create": 2.0, "eager": 0.5}


def test_a_phase_entered_twice_counts_both_times() -> None:
    marks = ((Phase.EAGER, 0.0), (Phase.COMPILE, 1.0), (Phase.EAGER, 3.0))
    assert messages.durations(marks, 4.0) == {"eager": 2.0, "compile": 2.0}
    assert messages.durations((), 4.0) == {}


def test_what_a_child_did_not_write_or_finish_is_nothing(tmp_path: Path) -> None:
    assert messages.read_marks(tmp_path) == ()
    assert messages.read_result(tmp_path) is None
    files.replace(tmp_path / messages.PHASES_FILE, b'[["create",1.')
    files.replace(tmp_path / messages.RESULT_FILE, b'{"result":{"status":"pass"')
    assert messages.read_marks(tmp_path) == ()
    assert messages.read_result(tmp_path) is None
    for damaged in (b'{"result": "\xff"}', b"[" * 10_000):  # a model may leave such files
        files.replace(tmp_path / messages.RESULT_FILE, damaged)
        files.replace(tmp_path / messages.PHASES_FILE, damaged)
        assert (messages.read_marks(tmp_path), messages.read_result(tmp_path)) == ((), None)
    files.replace(tmp_path / messages.PHASES_FILE, b'[["create",1.5]]')
    assert messages.read_marks(tmp_path) == ((Phase.CREATE, 1.5),)
