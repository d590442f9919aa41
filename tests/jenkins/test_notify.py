from __future__ import annotations

import json
import os
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "notify.py"


class Hook(BaseHTTPRequestHandler):
    """A chat's incoming webhook."""

    received: ClassVar[list[str]] = []
    status: ClassVar[int] = 200

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.received.append(json.loads(body)["text"])
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


class Post(socketserver.StreamRequestHandler):
    """The few words of SMTP that one mail needs."""

    received: ClassVar[list[str]] = []

    def handle(self) -> None:
        self.wfile.write(b"220 ready\r\n")
        while line := self.rfile.readline().strip():
            if line.upper() == b"DATA":
                self.wfile.write(b"354 go on\r\n")
                text = b""
                while (part := self.rfile.readline()) != b".\r\n":
                    text += part
                self.received.append(text.decode())
            if line.upper() == b"QUIT":
                self.wfile.write(b"221 bye\r\n")
                return
            self.wfile.write(b"250 fine\r\n")


@pytest.fixture
def hook() -> Iterator[str]:
    Hook.received, Hook.status = [], 200
    with HTTPServer(("127.0.0.1", 0), Hook) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/secret"
        server.shutdown()


@pytest.fixture
def post() -> Iterator[str]:
    Post.received = []
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Post) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def change(kind: str, model: str, mode: str = "eval") -> dict[str, Any]:
    return {
        "kind": kind,
        "model": model,
        "target": {"name": "dynamo", "mode": mode},
        "before": "pass",
        "after": "graph_break",
        "reason": "pass became graph_break",
    }


def notify(
    folder: Path, *changes: dict[str, Any], result: str = "SUCCESS", **variables: str
) -> subprocess.CompletedProcess[str]:
    (folder / "compare").mkdir(exist_ok=True)
    (folder / "compare" / "run.json").write_text(json.dumps({"changes": changes}))
    return subprocess.run(
        [sys.executable, str(SCRIPT), str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"RESULT": result, **variables},
    )


def test_a_regression_and_its_recovery_are_told_once_each(tmp_path: Path, hook: str) -> None:
    def build(*changes: dict[str, Any]) -> list[str]:
        Hook.received = []
        assert notify(tmp_path, *changes, NOTIFY_WEBHOOK=hook, BUILD_URL="http://j/7/").stderr == ""
        return Hook.received

    assert build() == []
    worse = change("regression", "BertModel")
    (told,) = build(worse, change("new", "Other"))
    assert told.splitlines()[:2] == [
        "new regressions: 1",
        "  BertModel [dynamo]: pass became graph_break",
    ]
    assert told.endswith("\n\nhttp://j/7/")
    assert build(worse) == []
    assert build() == []
    assert build(change("fixed", "BertModel", mode="train"), change("fixed", "Unknown")) == []
    (told,) = build(change("fixed", "BertModel"))
    assert told.startswith("recovered: 1\n  BertModel [dynamo]")
    assert build(change("fixed", "BertModel")) == []


def test_what_is_gone_has_not_recovered(tmp_path: Path) -> None:
    notify(tmp_path, change("regression", "BertModel"))
    assert notify(tmp_path, change("gone", "BertModel")).stdout == ""
    assert "new regressions: 1" in notify(tmp_path, change("regression", "BertModel")).stdout


def test_a_failing_monitor_is_told_once_and_again_when_it_works(tmp_path: Path) -> None:
    said = [
        notify(tmp_path, result=result).stdout.strip()
        for result in ("FAILURE", "FAILURE", "ABORTED", "UNSTABLE", "SUCCESS")
    ]
    assert said[0].startswith("the monitor failed")
    assert said[1:3] == ["", ""]
    assert said[3:] == ["the monitor works again", ""]


def test_mail_goes_to_all_with_the_news_as_subject(tmp_path: Path, post: str) -> None:
    given = {"NOTIFY_SMTP": post, "NOTIFY_MAIL_TO": "a@example.org, b@example.org"}
    done = notify(tmp_path, change("regression", "BertModel"), **given)
    assert done.returncode == 0, done.stderr
    (mail,) = Post.received
    assert "Subject: compilewatch: new regressions: 1" in mail
    assert "To: a@example.org, b@example.org" in mail
    assert "BertModel [dynamo]" in mail


def test_what_was_not_delivered_is_tried_again_and_names_no_secret(
    tmp_path: Path, hook: str
) -> None:
    Hook.status = 500
    done = notify(tmp_path, change("regression", "BertModel"), NOTIFY_WEBHOOK=hook)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "check NOTIFY_WEBHOOK" in done.stderr
    assert "secret" not in done.stderr
    Hook.status = 200
    assert notify(tmp_path, change("regression", "BertModel"), NOTIFY_WEBHOOK=hook).returncode == 0
    assert len(Hook.received) == 2
    done = notify(tmp_path, result="FAILURE", NOTIFY_MAIL_TO="a@b", NOTIFY_SMTP="127.0.0.1:1")
    assert done.returncode == 2
    assert "127.0.0.1:1 did not take the mail" in done.stderr


@pytest.mark.parametrize("text", ["", "{", '{"open": 3}'])
def test_a_damaged_state_costs_recoveries_only(tmp_path: Path, text: str) -> None:
    (tmp_path / "notified.json").write_text(text)
    assert "new regressions: 1" in notify(tmp_path, change("regression", "A")).stdout
    assert "recovered: 1" in notify(tmp_path, change("fixed", "A")).stdout


def test_of_many_the_first_are_named(tmp_path: Path) -> None:
    said = notify(tmp_path, *(change("regression", f"M{n}") for n in range(25))).stdout
    assert "new regressions: 25" in said
    assert "and 5 more" in said
