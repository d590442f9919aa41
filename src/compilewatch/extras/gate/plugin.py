"""The pytest plug-in: the fixture `compile_check`, the baseline, and a table at the end.

Every pytest session of an environment imports this module, so it imports little: torch comes with
the first check.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from compilewatch.extras.gate.fixture import CompileCheck
    from compilewatch.extras.gate.session import GateSession

PROPERTY = "compilewatch_"
"""The user properties of a test with checks begin so; JUnit files contain them."""

UPDATE = "--compilewatch-update"

_STRICT = "--compilewatch-strict"

REPORTS = pytest.StashKey[str]()
"""The reports of a test's checks as JSON."""

_ATTRIBUTE = "compilewatch"
"""The attribute of a test report with them, which xdist sends to its controller."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("compilewatch", "graph breaks of torch.compile")
    for flag, text in (
        (UPDATE, "write the graph breaks that the checks of this session meet to the baseline"),
        (
            _STRICT,
            "fail for resolved graph breaks that the baseline still has, and for entries without "
            "a reason and a link",
        ),
    ):
        group.addoption(flag, action="store_true", help=text)
    group.addoption(
        "--compilewatch-baseline",
        metavar="FILE",
        help="the baseline, relative to the root (default: compilewatch.baseline.json)",
    )
    for name, what in (
        ("sarif", "SARIF 2.1.0, for code scanning"),
        ("summary", "a summary in Markdown (under GitHub Actions also that of the job)"),
        ("code-quality", "GitLab's code quality report"),
    ):
        group.addoption(f"--compilewatch-{name}", metavar="FILE", help=f"write {what}")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "compilewatch(own=, third_party=, recompilations=, captured_share=, fullgraph=, "
        "numerics=): what fails a check of compile_check in this test",
    )
    if not hasattr(config, "workerinput"):  # a worker of xdist reports to its controller
        config.pluginmanager.register(_Collector(config), "compilewatch-collector")


@pytest.fixture
def compile_check(request: pytest.FixtureRequest) -> CompileCheck:
    """Check that Dynamo captures a model without new graph breaks: `compile_check(model, x)`."""
    from compilewatch.extras.gate.fixture import CompileCheck

    return CompileCheck(request)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put the reports of the checks onto the report of their test."""
    report = yield
    if call.when == "call" and REPORTS in item.stash:
        setattr(report, _ATTRIBUTE, item.stash[REPORTS])
    return report


class _Collector:
    """Collects what the checks of a session met; under xdist all reports come to its controller."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._checks: dict[str, str] = {}
        self._partial: set[str] = set()
        self._session: GateSession | None = None
        self._problems: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        checks = getattr(report, _ATTRIBUTE, None)
        if report.when == "call" and checks is not None:
            self._checks[report.nodeid] = checks
            self._partial.discard(report.nodeid)
            if not report.passed:
                self._partial.add(report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not self._checks:
            return
        import msgspec

        from compilewatch.extras.gate.judgement import CheckReport
        from compilewatch.extras.gate.session import GateSession

        reports = {
            name: msgspec.json.decode(text, type=tuple[CheckReport, ...])
            for name, text in self._checks.items()
        }
        option = self._config.getoption
        self._session = GateSession(
            self._config.rootpath,
            reports,
            update=f"pytest {UPDATE}",
            baseline=option("--compilewatch-baseline"),
            partial=self._partial,
        )
        rejected, unwritten = self._session.end(
            update=option(UPDATE),
            strict=option(_STRICT),
            sarif=option("--compilewatch-sarif"),
            summary=option("--compilewatch-summary"),
            code_quality=option("--compilewatch-code-quality"),
        )
        if rejected:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        self._problems = [*rejected, *unwritten]
        if unwritten and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.USAGE_ERROR

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._session is None:
            return
        terminalreporter.write_sep("=", "compilewatch")
        from compilewatch.extras.gate.session import error_commands

        for line in (*self._session.lines(), *self._problems, *error_commands(self._session)):
            terminalreporter.write_line(line)
