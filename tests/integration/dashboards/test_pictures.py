"""What the pictures' script says of a page, with a real Chromium and a Grafana that is a few lines.

Seconds: whether text is cut off, only a browser can tell.
"""

import json
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from PIL import Image

from scripts import dashboard_pictures
from tests import services
from tests.serving import serving

pytestmark = pytest.mark.browser

CELL = '<div role="gridcell" style="width: 60px; overflow: hidden; white-space: nowrap">{}</div>'
PANEL = '<section><div data-testid="data-testid Panel header A"><h2>A</h2></div>{}</section>'
FAILED = '<button data-testid="data-testid Panel status error"></button>'
FOREIGN = '<img src="http://elsewhere.invalid/a.png">'
SIZE = {"gridPos": {"x": 0, "y": 0, "w": 24, "h": 10}}


def grafana(body: str) -> type[BaseHTTPRequestHandler]:
    class Grafana(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not self.headers.get("Authorization", "").startswith("Basic "):
                self.send_error(401)
                return
            answers = {
                "/api/search": json.dumps([{"uid": "compilewatch-cost"}]),
                "/api/dashboards": json.dumps({"dashboard": {"panels": [SIZE]}}),
                "/d/compilewatch-cost": f"<!doctype html><body>{body}</body>",
            }
            found = next((text for path, text in answers.items() if path in self.path), "")
            self.send_response(200)
            self.send_header("Content-Type", "text/html" if "<" in found else "application/json")
            self.end_headers()
            self.wfile.write(found.encode())

        def log_message(self, format: str, *args: object) -> None: ...

    return Grafana


@pytest.mark.matrix
def test_a_page_is_pictured_and_its_faults_are_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    services.program("chromium", package="chromium")
    monkeypatch.setenv("GRAFANA_PASSWORD", "secret")
    faults = FAILED + FOREIGN + CELL.format("a name that is long")
    said = ["could not load: A", "asked another host: elsewhere.invalid"]
    for body, expected in (
        (CELL.format("short"), []),
        (faults, [*said, "cut off: a name that is long"]),
    ):
        with serving(grafana(PANEL.format(body))) as url:
            options = [url, "--folder", str(tmp_path), "--width", "800"]
            assert dashboard_pictures.main(options) == bool(expected)
        first, *others = capsys.readouterr().out.splitlines()
        assert first.startswith(f"{tmp_path}/dashboard-cost.webp: ")
        assert [line.strip() for line in others if "complaint" not in line] == expected
        with Image.open(tmp_path / "dashboard-cost.webp") as image:
            assert image.size == (800, 10 * 38 + 120)
