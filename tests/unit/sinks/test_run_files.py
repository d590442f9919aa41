import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

from compilewatch.records import Mode, Status, Target
from compilewatch.sinks import run_files as junit
from tests import example_run, factories
from tests.reviewing import assert_as_reviewed

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


def test_the_file_is_as_reviewed() -> None:
    """Of a run with everything: `junit.xml` has each status, hostile text and what is missing."""
    document = junit.document(example_run.view(*example_run.row()))
    assert_as_reviewed(document, Path(__file__).with_name("junit.xml"))


def test_the_file_fits_the_schema_and_adds_up() -> None:
    root = ET.fromstring(junit.document(example_run.view()))
    for element in root.iter():
        assert set(element.keys()) <= ATTRIBUTES[element.tag], element.tag
        assert {child.tag for child in element} <= CHILDREN.get(element.tag, set()), element.tag
    for suite in root:
        cases = suite.findall("testcase")
        assert suite.get("tests") == str(len(cases))
        for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped",) * 2):
            assert suite.get(attribute) == str(sum(case.find(tag) is not None for case in cases))
    names = [(case.get("classname"), case.get("name")) for case in root.iter("testcase")]
    # One more for what was planned and has no result.
    assert len(set(names)) == len(names) == len(example_run.results()) + 1
    assert root.get("tests") == str(len(names))
    bare = {case.get("name", "").rpartition(" [")[0] for case in root.iter("testcase") if not case}
    passed = {r.request.model.name for r in example_run.results() if r.status is Status.PASS}
    assert bare == passed


def test_a_regression_says_so_on_its_own_target_only() -> None:
    view = example_run.view()
    (change,) = (one for one in view.changes if one.model == "BertModel")
    broken: dict[str, Any] = {"breaks": (factories.graph_break(),)}
    results = [factories.result(target=t, **broken) for t in (Target(), Target(mode=Mode.TRAIN))]
    root = ET.fromstring(junit.document(factories.view(*results, changes=(change,))))
    messages = {case.get("name"): case[0].get("message", "") for case in root.iter("testcase")}
    assert "regression: pass -> graph_break" in messages["BertModel [dynamo]"]
    assert "regression" not in messages["BertModel [dynamo/train]"]


def test_what_xml_forbids_is_left_out_and_the_rest_kept() -> None:
    hostile = "before \x00\x0b\x1b[31m\ufffe after \U0001f600 <&>"
    result = factories.result(status=Status.ERROR, detail=hostile, error=factories.error())
    (error,) = ET.fromstring(junit.document(factories.view(result))).iter("error")
    assert error.get("message", "").endswith("before [31m after \U0001f600 <&>")
