"""Tests with checks, each in a separate process: a crash of the compiler fails one test.

A model of a test cannot be sent to another process, and a process whose libraries have started
threads cannot be forked. So the child is pytest itself: it collects the one test, sets up its
fixtures, runs it, and writes its reports as JSON.
"""

import faulthandler
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from compilewatch.contract import processes

CHILD_OPTION = "compilewatch_child"
ORDER, OUTPUT, REPORTS, STACKS = "order.json", "output", "reports.jsonl", "stacks"

_TAIL_CHARACTERS = 4000

_FRAME_OF_PYTEST = re.compile(
    r'  File "(.*/(_pytest|pluggy)/.*|<string>|.*/extras/gate/isolation\.py)", line '
    "|Extension modules: "
)

_PROGRAM = (
    "import json, sys; order = json.load(open(sys.argv[1])); sys.path[:] = order['path']; "
    "from compilewatch.extras.gate.isolation import main; main(sys.argv[1])"
)

_OFF = ("collectonly", "compilewatch_isolate", "failedfirst", "lf", "newfirst")
_UNSET = ("compilewatch_code_quality", "compilewatch_sarif", "compilewatch_summary", "xmlpath")

_NOT_IN_CHILD: dict[str, Any] = {
    **dict.fromkeys((*_OFF, "stepwise", "usepdb"), False),
    **dict.fromkeys((*_UNSET, "numprocesses")),
    "cov_source": [],
    "dist": "no",
    "maxfail": 0,
    "no_cov": True,
    "tx": [],
}
"""Options of pytest and its plug-ins that are about the complete session."""


def isolated_reports(item: pytest.Item) -> Iterator[pytest.TestReport]:
    """Run a test in a child, and yield its reports; a child that ends early is one failure.

    The limits are those of `--compilewatch-timeout` and `--compilewatch-memory`.
    """
    with tempfile.TemporaryDirectory(prefix="compilewatch-") as name:
        folder = Path(name)
        (folder / ORDER).write_text(json.dumps(_order(item)), encoding="utf-8")
        ended = _run(folder, item)
        reports = list(_written(folder, item.config))
        yield from reports
        phases = {report.when for report in reports}
        if "teardown" in phases:
            return  # the test was over; how its process ends says nothing about it
        failed = f"compilewatch: {ended}\n\n{_output(folder)}".strip()
        ends: tuple[tuple[Any, str], ...] = (("setup", ""), ("call", failed), ("teardown", ""))
        for when, text in ends:
            if when not in phases or when == "call":
                yield pytest.TestReport(
                    nodeid=item.nodeid,
                    location=item.location,
                    keywords=dict.fromkeys(item.keywords, 1),
                    outcome="failed" if text else "passed",
                    longrepr=text or None,
                    when=when,
                )


def _order(item: pytest.Item) -> dict[str, Any]:
    config, inside = item.config, item.nodeid.partition("::")[2]
    test = f"{item.path}::{inside}"
    options = {name: value for name, value in vars(config.option).items() if _is_plain(value)}
    options |= {name: value for name, value in _NOT_IN_CHILD.items() if name in options}
    plugins = [*options.pop("plugins", []), "no:terminal", "no:cacheprovider"]
    options |= {
        "rootdir": str(config.rootpath),
        "inifilename": str(config.inipath) if config.inipath is not None else None,
        "basetemp": None,
        "file_or_dir": [test],
        CHILD_OPTION: True,
    }
    return {
        "options": options,
        "arguments": [*(word for name in plugins for word in ("-p", name)), test],
        "path": sys.path,
    }


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, str | int | float)


def _run(folder: Path, item: pytest.Item) -> str:
    """Run the child until its end or a limit; return how it ended."""
    timeout: float = item.config.getoption("--compilewatch-timeout")
    gib = item.config.getoption("--compilewatch-memory")
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    memory = int(gib * 2**30 if gib else 0.75 * installed)
    ended: Any
    try:
        ended = processes.run(
            [sys.executable, "-X", "faulthandler", "-c", _PROGRAM, str(folder / ORDER)],
            seconds=timeout,
            memory_bytes=memory,
            warning=signal.SIGUSR1,  # upon which it writes Python's stacks
            cwd=item.config.invocation_params.dir,
        )
    except subprocess.TimeoutExpired as error:
        ended = error
    (folder / OUTPUT).write_bytes((ended.stdout or b"") + (ended.stderr or b""))
    match ended:
        case processes.MemoryExpiredError():
            return f"memory: the test needed more than {memory / 2**30:.3g} GiB"
        case subprocess.TimeoutExpired():
            return f"timeout: the test took longer than {timeout:g} seconds"
    if ended.returncode < 0:
        name = signal.Signals(-ended.returncode).name
        return f"crashed: the process of the test was ended by {name}"
    return f"the process of the test ended early, with the exit status {ended.returncode}"


def _output(folder: Path) -> str:
    """What a child printed, and its stacks, without the frames of pytest itself."""
    text = ""
    for name in (OUTPUT, STACKS):
        with suppress(FileNotFoundError):
            text += (folder / name).read_text(encoding="utf-8", errors="replace")
    lines = [line for line in text.splitlines() if not _FRAME_OF_PYTEST.match(line)]
    return "\n".join(lines).strip()[-_TAIL_CHARACTERS:]


def _written(folder: Path, config: pytest.Config) -> Iterator[pytest.TestReport]:
    """The reports that a child wrote; one that was cut off is left out."""
    with suppress(FileNotFoundError):
        for line in (folder / REPORTS).read_text(encoding="utf-8").splitlines():
            try:
                data = json.loads(line)
            except ValueError:
                return
            report = config.hook.pytest_report_from_serializable(config=config, data=data)
            report.location = tuple(report.location)
            report.user_properties = [tuple(pair) for pair in report.user_properties]
            if isinstance(report.longrepr, list):  # of a skipped test
                report.longrepr = tuple(report.longrepr)
            yield report


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
