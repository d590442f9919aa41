"""`junit.xml`: one test case per model and target, so that Jenkins keeps the history of each.

The test case is "does this model compile without graph breaks on this target?", and its outcome
depends on this run only, never on the baseline: what was a regression yesterday would pass today.
A graph break or a mismatch is a `<failure>`, what has no verdict an `<error>`, and what did not
run, is expected or is a forecast is `<skipped>`. Planned requests without a result are one
`<error>` together.

Jenkins itself distinguishes new failures from old ones. Known graph breaks must not make every
build unstable, so publish with `junit skipMarkingBuildUnstable: true` and let the exit status of
`sweep --fail-on regression` decide about the build. The message of a regression says so.

The format is that of the Jenkins JUnit plugin: `testsuites/testsuite/testcase`, see
https://github.com/testmoapp/junitxml for the fields that are commonly read.
"""

import re
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Sequence

from compilewatch import records
from compilewatch.analysis.summary import planned
from compilewatch.config import Settings
from compilewatch.contract.targets import target_label
from compilewatch.report import wording
from compilewatch.report.html import render
from compilewatch.store import RunFolder

FAILURES = frozenset({records.Status.GRAPH_BREAK, records.Status.MISMATCH})

# Characters that XML 1.0 section 2.2 does not allow, escaped or not: Jenkins rejects a file with
# one of them. They occur in error messages, which contain output of models.
ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

BODY_CHARACTERS = 20_000


class JunitSink:
    """Writes `junit.xml` into the run's folder."""

    name = "junit"

    def __init__(self, settings: Settings) -> None:
        del settings

    def publish(self, view: records.RunView, files: RunFolder) -> str:
        files.write("junit.xml", document(view))
        return "junit.xml"


def document(view: records.RunView) -> bytes:
    """Return the file as UTF-8, with one suite per target in the order of the target labels."""
    run = view.run
    by_target: dict[str, list[records.Result]] = defaultdict(list)
    for result in view.results:
        by_target[target_label(result.request.target)].append(result)
    regressions = {
        (change.model, target_label(change.target)): change
        for change in view.changes
        if change.kind is records.ChangeKind.REGRESSION
    }
    root = ET.Element("testsuites", name="compilewatch")
    for label, results in sorted(by_target.items()):
        results.sort(key=lambda r: (r.request.model.family, r.request.model.name))
        cases = [_case(r, label, regressions.get((r.request.model.name, label))) for r in results]
        root.append(_suite(run, label, cases))
    if missing := planned(view) - len(view.results):
        # One error for planned requests without a result: none may vanish.
        names = {"classname": "compilewatch", "name": "planned requests", "time": "0.000"}
        case = ET.Element("testcase", names)
        message = f"{missing} planned requests have no result: what did not run has not passed"
        ET.SubElement(case, "error", message=message, type="missing")
        root.append(_suite(run, "planned requests", [case]))
    for attribute in ("tests", "failures", "errors", "skipped"):
        root.set(attribute, str(sum(int(suite.get(attribute, 0)) for suite in root)))
    root.set("time", f"{sum(float(suite.get('time', 0)) for suite in root):.3f}")
    for element in root.iter():
        for name, value in element.items():
            element.set(name, ILLEGAL.sub("", value))
        if element.text:
            element.text = ILLEGAL.sub("", element.text)[:BODY_CHARACTERS]
    ET.indent(root)
    body: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return body + b"\n"


def _suite(run: records.Run, label: str, cases: Sequence[ET.Element]) -> ET.Element:
    suite = ET.Element("testsuite", name=f"compilewatch {label}")
    # The schema requires seconds without a time zone; RFC 3339 in UTC starts with them.
    suite.set("timestamp", run.started_at[:19])
    properties = ET.SubElement(suite, "properties")
    about = {"run": run.id, "state": run.state, "planned": str(run.planned)}
    if run.baseline:
        about["baseline"] = run.baseline
    for environment in run.environments:
        prefix = f"environment.{environment.name}"
        about[f"{prefix}.torch"] = f"{environment.torch} ({environment.torch_git})"
        about[f"{prefix}.transformers"] = str(environment.transformers)
    for name, value in about.items():
        ET.SubElement(properties, "property", name=name, value=value)
    suite.extend(cases)
    suite.set("tests", str(len(cases)))
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(attribute, str(sum(case.find(tag) is not None for case in cases)))
    suite.set("time", f"{sum(float(case.get('time', 0)) for case in cases):.3f}")
    return suite


def _case(result: records.Result, label: str, regression: records.Change | None) -> ET.Element:
    model, status, error = result.request.model, result.status, result.error
    # A reused result took no time in this run.
    seconds = 0.0 if result.reused_from else result.duration_seconds
    names = {"classname": model.family, "name": f"{model.name} [{label}]"}
    case = ET.Element("testcase", {**names, "time": f"{seconds:.3f}"})
    if status is records.Status.PASS:
        return case
    where = f"{status.value} in {result.phase.value}"
    detail = result.detail or where
    if status in records.NOT_RUN | records.FORECASTS or result.expectation is not None:
        message = f"{status.value}: {detail}"
        if status in records.FORECASTS:
            message = f"no verdict, {wording.status_words(result)} {result.detail}".strip()
        if result.expectation is not None:
            message = f"expected {status.value}: {result.expectation}"
        ET.SubElement(case, "skipped", message=message)
        return case
    message = f"{where}: {detail}"
    if regression is not None:
        message = f"regression: {regression.reason}; {status.value}: {detail}"
    element = ET.SubElement(case, "failure" if status in FAILURES else "error", message=message)
    element.set("type", error.code if error is not None else status.value)
    texts = [
        f"{b.code} {b.file}:{b.line} in {b.function} ({b.occurrences}x)\n{_source(b)}{b.reason}"
        for b in result.breaks
    ]
    if result.numerics is not None:
        texts += (f"differs from eager: {name}" for name in result.numerics.mismatches)
    if error is not None:
        texts += [f"{error.type}: {error.message}", error.head]
        texts += [error.tail] if error.tail != error.head else []
    element.text = "\n\n".join(filter(None, texts))
    return case


def _source(graph_break: records.GraphBreak) -> str:
    """The stored lines around a break, its own marked."""
    return "".join(
        f"{'>' if number == graph_break.line else ' '} {number:>5} | {text}\n"
        for number, text in records.source_lines(graph_break)
    )


class HtmlSink:
    """Writes `report/index.html` and the pages that it links to."""

    name = "html"

    def __init__(self, settings: Settings) -> None:
        del settings

    def publish(self, view: records.RunView, files: RunFolder) -> str:
        for path, content in render(view):
            files.write(f"report/{path}", content)
        return "report/index.html"
