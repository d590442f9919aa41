import xml.etree.ElementTree as ET
from typing import Any

import pytest

from compilewatch.records import Change, ChangeKind, Mode, Numerics, Phase, Status, Target
from compilewatch.sinks import run_files as junit
from tests import example_run, factories

# The attributes and children that Jenkins' JUnit schema knows (jenkins-junit.xsd of the xUnit
# plugin), by element.
ATTRIBUTES = {
    "testsuites": {"name", "tests", "failures", "errors", "skipped", "time"},
    "testsuite": {"name", "tests", "failures", "errors", "skipped", "time", "timestamp"},
    "properties": set(),
    "property": {"name", "value"},
    "testcase": {"name", "classname", "time"},
    "failure": {"message", "type"},
    "error": {"message", "type"},
    "skipped": {"message"},
}
CHILDREN = {
    "testsuites": {"testsuite"},
    "testsuite": {"properties", "testcase"},
    "properties": {"property"},
    "testcase": {"failure", "error", "skipped"},
}


def parsed(*results: Any, **fields: Any) -> ET.Element:
    return ET.fromstring(junit.document(factories.view(*results, **fields)))


def outcome(root: ET.Element) -> Any:
    case = root.find("testsuite/testcase")
    assert case is not None
    return next(iter(case), None)


@pytest.mark.parametrize(
    ("status", "phase", "tag"),
    [
        (Status.PASS, Phase.DONE, None),
        (Status.GRAPH_BREAK, Phase.DONE, "failure"),
        (Status.MISMATCH, Phase.COMPARE, "failure"),
        (Status.ERROR, Phase.COMPILE, "error"),
        (Status.ERROR, Phase.CREATE, "error"),
        (Status.TIMEOUT, Phase.EAGER, "error"),
        (Status.OOM, Phase.CREATE, "error"),
        (Status.CRASHED, Phase.COMPILE, "error"),
        (Status.SKIPPED, Phase.SETUP, "skipped"),
        (Status.UNSUPPORTED, Phase.SETUP, "skipped"),
    ],
)
def test_each_status_has_its_element(status: Any, phase: Any, tag: Any) -> None:
    element = outcome(parsed(factories.result(status=status, phase=phase)))
    assert (element.tag if element is not None else None) == tag
    if tag in ("failure", "error"):
        assert phase.value in element.get("message")


def test_an_expected_failure_is_skipped_with_its_reason() -> None:
    element = outcome(parsed(factories.result(status=Status.ERROR, expectation="needs timm")))
    assert element.tag == "skipped"
    assert "needs timm" in element.get("message")


def test_a_regression_says_so_on_its_own_target_only() -> None:
    train = Target(mode=Mode.TRAIN)
    change = Change(
        kind=ChangeKind.REGRESSION,
        model="BertModel",
        target=train,
        before=Status.PASS,
        after=Status.GRAPH_BREAK,
        reason="pass -> graph_break",
    )
    broken = [
        factories.result(target=target, breaks=(factories.graph_break(),))
        for target in (Target(), train)
    ]
    root = parsed(*broken, changes=(change,))
    messages = {case.get("name"): case[0].get("message") for case in root.iter("testcase")}
    assert "regression" not in messages["BertModel [dynamo]"]
    assert "regression: pass -> graph_break" in messages["BertModel [dynamo/train]"]


def test_a_failure_names_code_place_and_whole_reason() -> None:
    source = {"source_start": 6, "source": ("def f(x):", "    if x.sum() > 0:", "        x = 2")}
    broken = factories.graph_break("f", line=7, **source)
    element = outcome(parsed(factories.result(breaks=(broken,))))
    assert "GB0170 transformers/models/bert/modeling_bert.py:7 in f" in element.text
    assert "      6 | def f(x):\n>     7 |     if x.sum() > 0:\n" in element.text
    assert "reason of GB0170 in f" in element.text


def test_a_reused_result_took_no_time() -> None:
    root = parsed(factories.result(reused_from="20260101-000000-0001"), factories.result("Other"))
    times = {case.get("name"): float(case.get("time")) for case in root.iter("testcase")}
    assert times == {"BertModel [dynamo]": 0, "Other [dynamo]": 2}
    assert float(root.get("time")) == 2


def test_the_whole_file_fits_the_schema_and_adds_up() -> None:
    root = ET.fromstring(junit.document(example_run.view()))
    for element in root.iter():
        assert set(element.keys()) <= ATTRIBUTES[element.tag], element.tag
        assert {child.tag for child in element} <= CHILDREN.get(element.tag, set()), element.tag
    for suite in root:
        assert suite[0].tag == "properties"
        cases = suite.findall("testcase")
        assert int(suite.get("tests")) == len(cases)
        for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped",) * 2):
            assert int(suite.get(attribute)) == sum(case.find(tag) is not None for case in cases)
    names = [(case.get("classname"), case.get("name")) for case in root.iter("testcase")]
    # One more for what was planned and has no result.
    assert len(set(names)) == len(names) == len(example_run.results()) + 1
    assert root[-1].find("testcase/error").get("message").startswith("3 planned requests have no")
    assert int(root.get("tests")) == len(names)
    bare = {case.get("name").rpartition(" [")[0] for case in root.iter("testcase") if not len(case)}
    passed = {r.request.model.name for r in example_run.results() if r.status is Status.PASS}
    assert bare == passed


def test_what_xml_forbids_is_left_out_and_the_rest_kept() -> None:
    hostile = "before \x00\x0b\x1b[31m\ufffe after \U0001f600 <&>"
    error = factories.error()
    element = outcome(parsed(factories.result(status=Status.ERROR, detail=hostile, error=error)))
    assert element.get("message").endswith("before [31m after \U0001f600 <&>")


def test_failures_and_skips_carry_their_reason() -> None:
    wrong = Numerics(deterministic=True, matches=False, mismatches=("output.logits",))
    differs = outcome(parsed(factories.result(status=Status.MISMATCH, numerics=wrong)))
    assert differs.text == "differs from eager: output.logits"
    missing = "type: compilewatch env create xla"
    skipped = outcome(parsed(factories.result(status=Status.UNSUPPORTED, detail=missing)))
    assert (skipped.tag, skipped.get("message")) == ("skipped", f"unsupported: {missing}")
    error = factories.error("NCC_EVRF009")
    failed = outcome(parsed(factories.result(status=Status.ERROR, error=error)))
    assert failed.get("type") == "NCC_EVRF009"
    assert "it failed" in failed.text
