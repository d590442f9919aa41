"""The sink `html`: the report, as files of the run's folder."""

from __future__ import annotations

from compilewatch.config.settings import Settings
from compilewatch.records import RunView
from compilewatch.report.html import render
from compilewatch.sinks import RunFiles


class HtmlSink:
    """Writes `report/index.html` and the pages that it links to."""

    name = "html"

    def __init__(self, settings: Settings) -> None:
        del settings

    def publish(self, view: RunView, files: RunFiles) -> str:
        for path, content in render(view):
            files.write(f"report/{path}", content)
        return "report/index.html"
