import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compilewatch.records import (
    Depth,
    Earlier,
    FactoryBuild,
    FullgraphVerdict,
    Mode,
    Phase,
    Status,
    Target,
)
from compilewatch.report import wording
from compilewatch.report.terminal import source_excerpt
from compilewatch.report.wording import ResultGroup
from tests import factories

PASS, BREAK, ERROR, TIMEOUT = Status.PASS, Status.GRAPH_BREAK, Status.ERROR, Status.TIMEOUT


@pytest.mark.parametrize(
    ("status", "phase", "expected", "words"),
    [
        (PASS, Phase.DONE, ResultGroup.PASS, "pass"),
        (BREAK, Phase.DONE, ResultGroup.GRAPH_BREAK, "graph break"),
        (Status.MISMATCH, Phase.COMPARE, ResultGroup.MISMATCH, "mismatch"),
        (ERROR, Phase.COMPILE, ResultGroup.COMPILE_ERROR, "compile error"),
        (ERROR, Phase.CREATE, ResultGroup.NO_VERDICT, "error in create"),
        (TIMEOUT, Phase.COMPILE, ResultGroup.NO_VERDICT, "timeout in compile"),
        (Status.OOM, Phase.EAGER, ResultGroup.NO_VERDICT, "oom in eager"),
        (Status.CRASHED, Phase.INPUTS, ResultGroup.NO_VERDICT, "crashed in inputs"),
        (Status.SKIPPED, Phase.SETUP, ResultGroup.NOT_RUN, "skipped"),
        (Status.UNSUPPORTED, Phase.SETUP, ResultGroup.NOT_RUN, "unsupported"),
    ],
)
def test_status_and_phase_decide_the_outcome(
    status: Status, phase: Phase, expected: ResultGroup, words: str
) -> None:
    result = factories.result(status=status, phase=phase)
    assert wording.outcome(result) is expected
    assert wording.status_words(result) == words
    without = (ResultGroup.NO_VERDICT, ResultGroup.NOT_RUN)
    assert result.is_verdict == (expected not in without)


NUMBERS: dict[Callable[[Any], str], dict[Any, str]] = {
    # Never rounded to all or nothing.
    wording.percent: {0: "0 %", 0.0001: "<0.1 %", 0.973: "97.3 %", 0.9999: ">99.9 %", 1: "100 %"},
    wording.quantity: {0: "0", 99_999: "99,999", 100_000: "100 k", 999_600: "1 M"}
    | {382_093_426: "382 M", 1_235_814_400: "1.24 B", 671_026_419_200: "671 B"},
    wording.seconds: {0.04: "0.04 s", 8.44: "8.4 s", 59.96: "1 min 00 s"}
    | {200: "3 min 20 s", 3599.7: "1 h 00 min"},
    wording.memory: {9_300: "9 KiB", 700 * 2**20: "700 MiB", 3 * 2**29: "1.5 GiB"},
}


@pytest.mark.parametrize("words", NUMBERS)
def test_numbers_have_few_digits_and_their_unit(words: Callable[[Any], str]) -> None:
    assert words(None) == "–"
    assert {number: words(number) for number in NUMBERS[words]} == NUMBERS[words]


OWN = {"build": FactoryBuild(factory="net:build")}


@pytest.mark.parametrize(
    ("asked", "reproduce", "explain", "sweep"),
    [
        (
            factories.request(
                "odd name",
                target=Target(name="export", mode=Mode.TRAIN, dynamic=True),
                depth=Depth.REDUCED,
            ),
            "'odd name'",
            "'odd name' --target export",
            "'odd name' --targets export --modes train --dynamic --depth reduced",
        ),
        (
            factories.request(target=Target(nested_graph_breaks=True)),
            *["BertModel --nested-graph-breaks on"] * 3,
        ),
        (
            factories.request("net:build", target=Target(environment="vision"), **OWN),
            *["net:build --environment vision"] * 2,
            "net:build --environments vision",
        ),
        (factories.request("net:build", **OWN), *["net:build"] * 3),
    ],
)
def test_commands_evaluate_the_same_request_again_and_survive_a_shell(
    asked: Any, reproduce: str, explain: str, sweep: str
) -> None:
    assert wording.repeat_commands(asked) == (
        f"compilewatch reproduce {reproduce}",
        f"compilewatch explain {explain}",
        f"compilewatch sweep --source library --models {sweep} --fresh",
    )


def test_only_a_break_that_fullgraph_accepts_needs_an_explanation() -> None:
    accepted, broken = FullgraphVerdict(accepted=True), (factories.graph_break(),)
    for fields, needed in (
        ({"breaks": broken}, False),
        ({"breaks": broken, "fullgraph": accepted}, True),
    ):
        assert bool(wording.fullgraph_note(factories.result(**fields))) is needed


def test_printable_keeps_lines_and_drops_what_moves_a_cursor() -> None:
    assert wording.printable("a\tb\nc\x1b[2J\x1b[31md\x07\r\x9b") == "a\tb\ncd"


@pytest.mark.parametrize(
    ("statuses", "said"),
    [
        ((PASS, BREAK, BREAK), "First broke in run1."),
        ((BREAK, PASS, TIMEOUT, ERROR, BREAK), "First failed in run3."),
        ((BREAK, TIMEOUT, PASS, TIMEOUT, PASS), "Without graph breaks since run2."),
        ((PASS, TIMEOUT, PASS), "Without graph breaks in every stored run with a verdict."),
        ((BREAK, ERROR), "Never passed in a stored run."),
        ((TIMEOUT,), "No stored run has a verdict."),
    ],
)
def test_a_history_says_since_when_its_newest_verdict_holds(statuses: Any, said: str) -> None:
    history = [Earlier(f"run{n}", status, Phase.COMPILE) for n, status in enumerate(statuses)]
    assert wording.history_words(history) == said


FORWARD = "transformers/models/bert/modeling_bert.py"


@pytest.mark.parametrize(
    ("file", "torch", "transformers", "page"),
    [
        (FORWARD, "2.15.0", "5.23.0", f"huggingface/transformers/blob/v5.23.0/src/{FORWARD}#L7"),
        ("torch/x.py", "2.15.0+cu132", None, "pytorch/pytorch/blob/v2.15.0/torch/x.py#L7"),
        ("torch/x.py", "2.16.0.dev20261101+cpu", None, None),
        ("torch/x.py", "2.15.0a0+gitd0f2af8", None, None),
        (FORWARD, "2.15.0", "5.24.0.dev0", None),
        (FORWARD, "2.15.0", None, None),
        ("torchvision/x.py", "2.15.0", "5.23.0", None),
        (None, "2.15.0", "5.23.0", None),
    ],
)
def test_code_of_a_release_has_a_page_on_github(
    file: str | None, torch: str, transformers: str | None, page: str | None
) -> None:
    environment = factories.environment(torch=torch, transformers=transformers)
    expected = page and f"https://github.com/{page}"
    assert wording.source_page(file, 7, environment) == expected


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ({"message": "no weights at /data/x\nTraceback"}, "no weights at /data/x"),
        ({"message": "x" * 200, "code": "NCC_EVRF009"}, f"NCC_EVRF009: {'x' * 106}…"),
        ({"message": " "}, "builtins.ValueError"),
    ],
)
def test_why_is_the_message_and_a_code_only_where_it_has_a_meaning(
    error: dict[str, str], said: str
) -> None:
    result = factories.result(status=ERROR, error=factories.error(**error))
    assert wording.why(result) == (said,)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An importable package that would betray that it was imported."""
    (tmp_path / "excerptpackage" / "inner").mkdir(parents=True)
    (tmp_path / "excerptpackage" / "__init__.py").write_text("raise AssertionError('imported')\n")
    (tmp_path / "excerptpackage" / "inner" / "code.py").write_text("one\ntwo\nthree\nfour\nfive\n")
    (tmp_path / "excerptmodule.py").write_text("alone\n")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.parametrize(
    ("file", "line", "lines"),
    [
        ("excerptpackage/inner/code.py", 1, {1: "one", 2: "two", 3: "three"}),
        ("excerptpackage/inner/code.py", 5, {3: "three", 4: "four", 5: "five"}),
        ("excerptmodule.py", 1, {1: "alone"}),
        ("excerptpackage/inner/code.py", 6, {}),
        ("excerptpackage/inner/code.py", 0, {}),
        ("excerptpackage/inner/missing.py", 1, {}),
        ("excerptpackage", 1, {}),
        ("excerptpackage.inner/code.py", 1, {}),
        ("<string>", 1, {}),
        ("", 1, {}),
        ("/etc/hostname", 1, {}),
    ],
)
def test_lines_around_a_place_are_found_without_an_import(
    package: None, file: str, line: int, lines: dict[int, str]
) -> None:
    assert dict(source_excerpt(file, line)) == lines
    assert "excerptpackage" not in sys.modules
