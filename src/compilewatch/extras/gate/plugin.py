"""The pytest plug-in: the fixture `compile_check`, the baseline, and a table at the end.

Every pytest session of an environment imports this module, so it imports little: torch comes with
the first check.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from compilewatch.extras.gate.fixture import CompileCheck
    from compilewatch.extras.gate.session import GateSession

PROPERTY = "compilewatch"
"""The user property of a test with its checks, as JSON; JUnit files contain it too."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("compilewatch", "graph breaks of torch.compile")
    group.addoption(
        "--compilewatch-update",
        action="store_true",
        help="write the graph breaks that the checks of this session meet to the baseline",
    )
    group.addoption(
        "--compilewatch-strict",
        action="store_true",
        help="fail for resolved graph breaks that the baseline still has",
    )
    group.addoption(
        "--compilewatch-baseline",
        metavar="FILE",
        help="the baseline, relative to the root (default: compilewatch.baseline.json)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "compilewatch(own=, third_party=, recompilations=, captured_share=, fullgraph=): what "
        "fails a check of compile_check in this test",
    )
    if not hasattr(config, "workerinput"):  # a worker of xdist reports to its controller
        config.pluginmanager.register(_Collector(config), "compilewatch-collector")


@pytest.fixture
def compile_check(request: pytest.FixtureRequest) -> CompileCheck:
    """Check that Dynamo captures a model without new graph breaks: `compile_check(model, x)`."""
    from compilewatch.extras.gate.fixture import CompileCheck

    return CompileCheck(request)


class _Collector:
    """Collects what the checks of a session met; under xdist all reports come to its controller."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._checks: dict[str, list[dict[str, Any]]] = {}
        self._session: GateSession | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            for name, value in report.user_properties:
                if name == PROPERTY:
                    self._checks.setdefault(report.nodeid, []).extend(json.loads(str(value)))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not self._checks:
            return
        from compilewatch.extras.gate.session import GateSession

        self._session = GateSession.of(self._config, self._checks)
        if self._config.getoption("--compilewatch-update"):
            self._session.update()
        elif self._session.resolved and self._config.getoption("--compilewatch-strict"):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._session is None:
            return
        terminalreporter.write_sep("=", "compilewatch")
        for line in self._session.lines():
            terminalreporter.write_line(line)
