"""The child of an isolated test: pytest on this one test, with the options of its parent."""

from __future__ import annotations

import faulthandler
import json
import signal
import sys
from pathlib import Path

import pytest

from compilewatch.extras.gate.isolation import REPORTS, STACKS


class _Reports:
    """Appends each report as a line, so that what was written before a crash is kept."""

    def __init__(self, config: pytest.Config, path: Path) -> None:
        self._config = config
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        with self._path.open("a", encoding="utf-8") as stream:
            stream.write(f"{json.dumps(data)}\n")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            print(report.longreprtext, file=sys.stderr)  # noqa: T201  (the parent shows it)


def main(order_path: str) -> None:
    """Run the test of an order, and exit with pytest's status."""
    path = Path(order_path)
    order = json.loads(path.read_text(encoding="utf-8"))
    faulthandler.register(signal.SIGUSR1, path.with_name(STACKS).open("w"), chain=False)
    config = pytest.Config.fromdictargs(order["options"], order["arguments"])
    config.pluginmanager.register(_Reports(config, path.with_name(REPORTS)))
    sys.exit(config.hook.pytest_cmdline_main(config=config))
