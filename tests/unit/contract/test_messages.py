import socket
from pathlib import Path

import pytest

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
        theirs.close()
        assert lines.receive() is None


def test_durations_end_where_the_next_phase_begins_and_add_up() -> None:
    marks = ((Phase.SETUP, 10.0), (Phase.EAGER, 10.5), (Phase.COMPILE, 12.5), (Phase.EAGER, 13.0))
    expected = {"setup": 0.5, "eager": 3.0, "compile": 0.5}
    assert messages.durations(marks, 14.0) == expected
    assert messages.durations((), 4.0) == {}


@pytest.mark.parametrize("text", [None, b'[["create",1.', b'{"result": "\xff"}', b"[" * 10_000])
def test_what_a_child_did_not_write_or_finish_is_nothing(
    tmp_path: Path, text: bytes | None
) -> None:
    for name in (messages.PHASES_FILE, messages.RESULT_FILE) if text else ():
        files.replace(tmp_path / name, text or b"")
    assert (messages.read_marks(tmp_path), messages.read_result(tmp_path)) == ((), None)
    files.replace(tmp_path / messages.PHASES_FILE, b'[["create",1.5]]')
    assert messages.read_marks(tmp_path) == ((Phase.CREATE, 1.5),)
