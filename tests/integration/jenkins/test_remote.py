"""The commands of docs/jenkins.md that start, follow and download, against a mock of Jenkins."""

import base64
import json
import re
import subprocess
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from tests.integration.jenkins.conftest import ROOT
from tests.serving import serving

JOB = "/job/compilewatch"


class Jenkins(BaseHTTPRequestHandler):
    """Responds as Jenkins does: an item of the queue becomes a build, which runs for a while."""

    asked: list[str]

    def do_GET(self) -> None:
        host = f"http://{self.headers['Host']}"
        times = self.asked.count(self.path)
        answers: dict[str, Any] = {
            "/queue/item/5/api/json": {"executable": {"url": f"{host}{JOB}/7/"}} if times else {},
            f"{JOB}/7/api/json?tree=building": {"building": times < 1},
            f"{JOB}/7/api/json?tree=result,description": {"result": "SUCCESS"},
            f"{JOB}/7/artifact/*zip*/archive.zip": "the archive",
        }
        self.answer(200 if self.path in answers else 404, json.dumps(answers.get(self.path)))

    def do_POST(self) -> None:
        self.body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.asked.append(self.body)
        self.answer(201, "")

    def answer(self, status: int, text: str) -> None:
        user = base64.b64encode(b"admin:TOKEN").decode()
        allowed = self.headers["Authorization"] == f"Basic {user}"
        self.asked.append(self.path)
        self.send_response(status if allowed else 403)
        self.send_header("Location", f"http://{self.headers['Host']}/queue/item/5/")
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: Any) -> None:
        pass


def test_the_documented_commands_start_follow_and_download(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "jenkins.md").read_text(encoding="utf-8")
    (commands,) = re.findall(r"```\n(url=.*?)```", page, re.DOTALL)
    asked: list[str] = []
    with serving(type("Asked", (Jenkins,), {"asked": asked})) as address:
        text = commands.replace("http://localhost:8080", address)
        done = subprocess.run(
            ["bash", "-euc", re.sub(r"sleep \d+", "sleep 0.01", text)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"result": "SUCCESS"}
    assert asked[:2] == ["SHARDS=2&FRESH=true", f"{JOB}/buildWithParameters"]
    assert asked.count(f"{JOB}/7/api/json?tree=building") == 2
    assert (tmp_path / "archive.zip").read_text() == '"the archive"'
