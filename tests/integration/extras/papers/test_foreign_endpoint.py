"""OPENSEARCH_ENDPOINT names a web server: one line that says so, without its page."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from compilewatch.errors import SourceError
from compilewatch.extras.papers import PaperQuery
from compilewatch.extras.papers.libraries import OpenSearchLibrary
from compilewatch.extras.papers.settings import PapersSettings
from tests.serving import serving


class Page(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.send_error(501)

    def log_message(self, format: str, *args: object) -> None:
        del format, args


@pytest.fixture
def url() -> Iterator[str]:
    with serving(Page) as address:
        yield address


def test_a_web_page_is_not_repeated(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    settings = PapersSettings(opensearch_endpoint=url, region="us-east-1")
    with pytest.raises(SourceError) as error:
        OpenSearchLibrary(settings, cache=tmp_path).find(PaperQuery(text="gates"))
    assert "correct OPENSEARCH_ENDPOINT" in str(error.value)
    assert "<" not in str(error.value)
    assert "\n" not in str(error.value)
    assert error.value.exit_status == 2
