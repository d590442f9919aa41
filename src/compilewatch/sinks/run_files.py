"""`junit.xml`: one test case per model and target, so that Jenkins keeps the history of each.
The test case is "does this model compile without graph breaks on this target?", and its outcome
depends on this run only, never on the baseline:

| result                                   | element     | why                                     |
|------------------------------------------|-------------|-----------------------------------------|
| pass                                     | none        |                                         |
| graph_break, mismatch                    | `<failure>` | it ran, and the verdict is not pass     |
| error, timeout, oom, crashed             | `<error>`   | it failed                               |
| skipped, unsupported                     | `<skipped>` | what did not run has not passed         |
| any of these with an expectation         | `<skipped>` | reviewed and known, in expectations.toml|
| planned, but without a result            | `<error>`   | one test case for all of them together  |

A graph break that existed yesterday is still a failure. Jenkins already distinguishes new failures
from old ones by test case ("300 failures (+3)", "failing since build 41") and reports a failure
that disappears as fixed. An outcome that depended on the baseline would pass on the day after a
regression, when the regression has become the baseline. Known graph breaks must not make every
build unstable, so publish with `junit skipMarkingBuildUnstable: true` and let the exit status of
`sweep --fail-on regression` decide about the build. The message of a regression says so.

The format is that of the Jenkins JUnit plugin: `testsuites/testsuite/testcase`, see
https://github.com/testmoapp/junitxml for the fields that are commonly read.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterable

from compilewatch.analysis.summary import planned
from compilewatch.config import Settings
from compilewatch.contract.targets import target_label
from compilewatch.records import (
    NOT_RUN,
    Change,
    ChangeKind,
    GraphBreak,
    Result,
    Run,
    RunView,
    Status,
    source_lines,
)
from compilewatch.report.html import render
from compilewatch.store import RunFolder

FAILURES = frozenset({Status.GRAPH_BREAK, Status.MISMATCH})

# Characters that XML 1.0 section 2.2 does not allow, escaped or not: Jenkins rejects a file with
# one of them. They occur in error messages, which contain output of models.
ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

BODY_CHARACTERS = 20_000


class JunitSink:
    """Writes `junit.xml` into the run's folder."""

    name = "junit"

    def __init__(self, settings: Settings) -> None:
        del settings

    def publish(self, view: RunView, files: RunFolder) -> str:
        files.write("junit.xml", document(view))
        return "junit.xml"


def document(view: RunView) -> bytes:
    """Return the file as UTF-8, with one suite per target in the order of the target labels."""
    by_target: dict[str, list[Result]] = defaultdict(list)
    for result in view.results:
        by_target[target_label(result.request.target)].append(result)
    regressions = {
        (change.model, target_label(change.target)): change
        for change in view.changes
        if change.kind is ChangeKind.REGRESSION
    }
    root = ET.Element("testsuites", name="compilewatch")
    for label in sorted(by_target):
        root.append(_suite(view.run, label, by_target[label], regressions))
    if missing := planned(view) - len(view.results):
        root.append(_missing(view.run, missing))
    for attribute in ("tests", "failures", "errors", "skipped"):
        root.set(attribute, str(sum(int(suite.get(attribute, 0)) for suite in root)))
    root.set("time", f"{sum(float(suite.get('time', 0)) for suite in root):.3f}")
    ET.indent(root)
    body: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return body + b"\n"


def _suite(
    run: Run, label: str, results: Iterable[Result], regressions: dict[tuple[str, str], Change]
) -> ET.Element:
    suite = ET.Element("testsuite", name=f"compilewatch {label}")
    # The schema requires seconds without a time zone; RFC 3339 in UTC starts with them.
    suite.set("timestamp", run.started_at[:19])
    properties = ET.SubElement(suite, "properties")
    for name, value in _properties(run):
        ET.SubElement(properties, "property", name=name, value=_legal(value))
    ordered = sorted(results, key=lambda r: (r.request.model.family, r.request.model.name))
    for result in ordered:
        regression = regressions.get((result.request.model.name, label))
        suite.append(_case(result, label, regression))
    cases = suite.findall("testcase")
    suite.set("tests", str(len(cases)))
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(attribute, str(sum(case.find(tag) is not None for case in cases)))
    suite.set("time", f"{sum(float(case.get('time', 0)) for case in cases):.3f}")
    return suite


def _missing(run: Run, requests: int) -> ET.Element:
    """Return a suite with one error for planned requests without a result: none may vanish."""
    suite = _suite(run, "planned requests", (), {})
    suite.set("tests", "1")
    suite.set("errors", "1")
    case = ET.SubElement(
        suite, "testcase", classname="compilewatch", name="planned requests", time="0.000"
    )
    message = f"{requests} planned requests have no result: what did not run has not passed"
    ET.SubElement(case, "error", message=message, type="missing")
    return suite


def _properties(run: Run) -> Iterable[tuple[str, str]]:
    yield "run", run.id
    yield "state", run.state
    yield "planned", str(run.planned)
    if run.baseline:
        yield "baseline", run.baseline
    for environment in run.environments:
        prefix = f"environment.{environment.name}"
        yield f"{prefix}.torch", f"{environment.torch} ({environment.torch_git})"
        yield f"{prefix}.transformers", str(environment.transformers)


def _case(result: Result, label: str, regression: Change | None) -> ET.Element:
    model = result.request.model
    # A reused result took no time in this run.
    seconds = 0.0 if result.reused_from else result.duration_seconds
    case = ET.Element(
        "testcase",
        classname=_legal(model.family),
        name=_legal(f"{model.name} [{label}]"),
        time=f"{seconds:.3f}",
    )
    tag = _tag(result)
    if tag is not None:
        outcome = ET.SubElement(case, tag, message=_legal(_message(result, regression)))
        if tag != "skipped":
            outcome.set("type", _legal(_type(result)))
            outcome.text = _legal(_body(result))[:BODY_CHARACTERS]
    return case


def _tag(result: Result) -> str | None:
    if result.status is Status.PASS:
        return None
    if result.status in NOT_RUN or result.expectation is not None:
        return "skipped"
    return "failure" if result.status in FAILURES else "error"


def _type(result: Result) -> str:
    if result.error is not None:
        return result.error.code
    return result.status.value


def _message(result: Result, regression: Change | None) -> str:
    detail = result.detail or f"{result.status.value} in {result.phase.value}"
    if result.expectation is not None:
        return f"expected {result.status.value}: {result.expectation}"
    if result.status in NOT_RUN:
        return f"{result.status.value}: {detail}"
    if regression is not None:
        return f"regression: {regression.reason}; {result.status.value}: {detail}"
    return f"{result.status.value} in {result.phase.value}: {detail}"


def _body(result: Result) -> str:
    lines = [
        f"{b.code} {b.file}:{b.line} in {b.function} ({b.occurrences}x)\n{_source(b)}{b.reason}"
        for b in result.breaks
    ]
    if result.numerics is not None:
        lines += (f"differs from eager: {name}" for name in result.numerics.mismatches)
    if result.error is not None:
        error = result.error
        lines += [f"{error.type}: {error.message}", error.head]
        if error.tail != error.head:
            lines.append(error.tail)
    return "\n\n".join(line for line in lines if line)


def _source(graph_break: GraphBreak) -> str:
    """The stored lines around a break, its own marked."""
    return "".join(
        f"{'>' if number == graph_break.line else ' '} {number:>5} | {text}\n"
        for number, text in source_lines(graph_break)
    )


def _legal(text: str) -> str:
    return ILLEGAL.sub("", text)


class HtmlSink:
    """Writes `report/index.html` and the pages that it links to."""

    name = "html"

    def __init__(self, settings: Settings) -> None:
        del settings

    def publish(self, view: RunView, files: RunFolder) -> str:
        for path, content in render(view):
            files.write(f"report/{path}", content)
        return "report/index.html"
