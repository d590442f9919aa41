from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from compilewatch.records import (
    Attempt,
    AttemptCode,
    CaptureFigures,
    ConfigBuild,
    Depth,
    Earlier,
    FactoryBuild,
    FullgraphVerdict,
    Mode,
    Part,
    Phase,
    Quantization,
    Result,
    Status,
    Target,
    Tier,
)
from compilewatch.report import wording
from compilewatch.report.wording import ResultGroup
from tests import factories


@pytest.mark.parametrize(
    ("status", "phase", "expected", "words"),
    [
        (Status.PASS, Phase.DONE, ResultGroup.PASS, "pass"),
        (Status.GRAPH_BREAK, Phase.DONE, ResultGroup.GRAPH_BREAK, "graph break"),
        (Status.MISMATCH, Phase.COMPARE, ResultGroup.MISMATCH, "mismatch"),
        (Status.ERROR, Phase.COMPILE, ResultGroup.COMPILE_ERROR, "compile error"),
        (Status.ERROR, Phase.CREATE, ResultGroup.NO_VERDICT, "error in create"),
        (Status.TIMEOUT, Phase.COMPILE, ResultGroup.NO_VERDICT, "timeout in compile"),
        (Status.OOM, Phase.EAGER, ResultGroup.NO_VERDICT, "oom in eager"),
        (Status.CRASHED, Phase.INPUTS, ResultGroup.NO_VERDICT, "crashed in inputs"),
        (Status.SKIPPED, Phase.SETUP, ResultGroup.NOT_RUN, "skipped"),
        (Status.UNSUPPORTED, Phase.SETUP, ResultGroup.NOT_RUN, "unsupported"),
    ],
)
def test_status_and_phase_decide_the_outcome(
    status: Any, phase: Any, expected: Any, words: Any
) -> None:
    result = factories.result(status=status, phase=phase)
    assert wording.outcome(result) is expected
    assert wording.status_words(result) == words
    verdicts = {
        ResultGroup.PASS,
        ResultGroup.GRAPH_BREAK,
        ResultGroup.MISMATCH,
        ResultGroup.COMPILE_ERROR,
    }
    assert result.is_verdict == (expected in verdicts)


def test_every_status_has_an_outcome_with_label_and_meaning() -> None:
    found = {wording.outcome(factories.result(status=status)) for status in Status}
    assert found == set(ResultGroup)
    assert set(wording.OUTCOME_LABELS) == set(wording.OUTCOME_MEANINGS) == set(ResultGroup)


def test_the_registry_page_is_the_one_that_torch_links() -> None:
    page = "https://meta-pytorch.github.io/compile-graph-break-site/gb/gb0170.html"
    assert wording.registry_page("GB0170") == page
    assert wording.registry_page("unbacked_symint") is None
    assert wording.registry_page("GBX") is None


NUMBERS: dict[Callable[[Any], str], dict[Any, str]] = {
    # Never rounded to all or nothing.
    wording.percent: {0: "0 %", 0.0001: "<0.1 %", 0.973: "97.3 %", 0.9999: ">99.9 %", 1: "100 %"},
    wording.quantity: {0: "0", 99_999: "99,999", 100_000: "100 k", 999_600: "1 M"}
    | {382_093_426: "382 M", 1_235_814_400: "1.24 B", 671_026_419_200: "671 B"},
    wording.seconds: {0.04: "0.04 s", 8.44: "8.4 s", 59.96: "1 min 00 s"}
    | {200: "3 min 20 s", 3599.7: "1 h 00 min"},
    wording.memory: {700 * 2**20: "700 MiB", 3 * 2**29: "1.5 GiB"},
}


@pytest.mark.parametrize("words", NUMBERS)
def test_numbers_have_few_digits_and_their_unit(words: Callable[[Any], str]) -> None:
    assert words(None) == "–"
    assert {number: words(number) for number in NUMBERS[words]} == NUMBERS[words]


def test_commands_evaluate_the_same_request_again_and_survive_a_shell() -> None:
    target = Target(name="export", mode=Mode.TRAIN, dynamic=True)
    asked = factories.request("odd name", target=target, depth=Depth.REDUCED, source="manifest")
    assert wording.repeat_commands(asked) == (
        "compilewatch reproduce 'odd name'",
        "compilewatch explain 'odd name' --target export",
        "compilewatch sweep --source manifest --models 'odd name' --targets export"
        " --modes train --dynamic --depth reduced --fresh",
    )


def test_commands_set_nested_graph_breaks_as_they_were() -> None:
    asked = factories.request(target=Target(nested_graph_breaks=True))
    assert wording.repeat_commands(asked) == (
        "compilewatch reproduce BertModel --nested-graph-breaks on",
        "compilewatch explain BertModel --nested-graph-breaks on",
        "compilewatch sweep --source library --models BertModel --nested-graph-breaks on --fresh",
    )


@pytest.mark.parametrize(("environment", "named"), [("vision", True), ("default", False)])
def test_commands_name_the_environment_of_a_persons_own_model(
    environment: str, named: bool
) -> None:
    asked = factories.request("net:build", target=Target(environment=environment))
    own = msgspec.structs.replace(asked.model, build=FactoryBuild(factory="net:build"))
    asked = msgspec.structs.replace(asked, model=own)
    option = " --environment vision" if named else ""
    reproduce, explain, sweep = wording.repeat_commands(asked)
    assert reproduce == f"compilewatch reproduce net:build{option}"
    assert explain == f"compilewatch explain net:build{option}"
    assert ("--environments vision" in sweep) is named


def test_the_captured_share_is_of_operators_that_were_counted() -> None:
    assert wording.captured_words(factories.result()) == ""
    assert wording.captured_words(factories.result(capture=CaptureFigures())) == ""
    some = CaptureFigures(operators_captured=933, operators_eager=2)
    words = wording.captured_words(factories.result(capture=some))
    assert words == "99.8 % captured (933 of 935 operators)"
    nothing = CaptureFigures(operators_captured=0, operators_eager=0)
    assert nothing.share is None


def test_only_a_break_that_fullgraph_accepts_needs_an_explanation() -> None:
    accepted = FullgraphVerdict(accepted=True)
    broken = factories.result(breaks=(factories.graph_break(),), fullgraph=accepted)
    assert "captures scalar outputs (`.item()`)" in wording.fullgraph_note(broken)
    assert wording.fullgraph_note(factories.result(fullgraph=accepted)) == ""
    assert wording.fullgraph_note(factories.result(breaks=(factories.graph_break(),))) == ""


def test_printable_keeps_lines_and_drops_what_moves_a_cursor() -> None:
    assert wording.printable("a\tb\nc\x1b[2J\x1b[31md\x07\r\x9b") == "a\tb\ncd"


def history(*statuses: Status) -> list[Earlier]:
    return [Earlier(f"run{n}", status, Phase.COMPILE) for n, status in enumerate(statuses)]


PASS, BREAK, ERROR, TIMEOUT = Status.PASS, Status.GRAPH_BREAK, Status.ERROR, Status.TIMEOUT


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
def test_a_history_says_since_when_its_newest_verdict_holds(statuses: Any, said: Any) -> None:
    assert wording.history_words(history(*statuses)) == said


FORWARD = "transformers/models/bert/modeling_bert.py"


@pytest.mark.parametrize(
    ("file", "torch", "transformers", "page"),
    [
        (FORWARD, "2.15.0", "5.23.0", f"huggingface/transformers/blob/v5.23.0/src/{FORWARD}#L7"),
        (
            "torch/nn/x.py",
            "2.15.0+cu132",
            "5.23.0",
            "pytorch/pytorch/blob/v2.15.0/torch/nn/x.py#L7",
        ),
        ("torch/nn/x.py", "2.16.0.dev20261101+cpu", "5.23.0", None),
        ("torch/nn/x.py", "2.15.0a0+gitd0f2af8", "5.23.0", None),
        (FORWARD, "2.15.0", "5.24.0.dev0", None),
        (FORWARD, "2.15.0", None, None),
        ("torchvision/x.py", "2.15.0", "5.23.0", None),
        ("mynet.py", "2.15.0", "5.23.0", None),
    ],
)
def test_code_of_a_release_has_a_page_on_github(
    file: Any, torch: Any, transformers: Any, page: Any
) -> None:
    environment = factories.environment(torch=torch, transformers=transformers)
    expected = page and f"https://github.com/{page}"
    assert wording.source_page(file, 7, environment) == expected


def test_code_without_a_line_or_an_environment_has_no_page() -> None:
    assert wording.source_page(FORWARD, 0, factories.environment()) is None
    assert wording.source_page(None, 7, factories.environment()) is None
    assert wording.source_page(FORWARD, 7, None) is None


def test_why_is_the_message_and_a_code_only_where_it_has_a_meaning() -> None:
    error = factories.error()
    missing = msgspec.structs.replace(error, message="no weights at /data/x\nTraceback")
    assert wording.why(factories.result(status=ERROR, error=missing)) == ("no weights at /data/x",)
    neuron = msgspec.structs.replace(error, code="NCC_EVRF009", message="x" * 200)
    (said,) = wording.why(factories.result(status=ERROR, error=neuron))
    assert said.startswith("NCC_EVRF009: xxx")
    assert len(said) == wording.MESSAGE_CHARACTERS
    silent = msgspec.structs.replace(error, message=" ")
    assert wording.why(factories.result(status=ERROR, error=silent)) == ("builtins.ValueError",)


def test_an_attempt_keeps_the_names_in_its_reason() -> None:
    code = AttemptCode.FAKE_UNSUPPORTED
    reason = "in eager, aten._local_scalar_dense.default"
    ended = Attempt(tier=Tier.FAKE, status=ERROR, phase=Phase.EAGER, code=code, reason=reason)
    said = "error in eager, fake unsupported: in eager, aten._local_scalar_dense.default"
    assert wording.attempt_words(ended) == said


def test_every_part_of_a_repository_has_words() -> None:
    words = {
        part: wording.part_words(factories.spec("org/m", part=part, component="unet"))
        for part in Part
    }
    assert words[Part.WHOLE].startswith("whole")
    assert words[Part.COMPONENT] == "component unet"
    assert words[Part.TRANSFORMERS].startswith("Transformers part only")
    assert len(set(words.values())) == len(Part)
    assert wording.part_words(factories.spec()) == ""


@pytest.mark.parametrize(
    ("weights", "words"),
    [(False, "awq, evaluated unquantised"), (True, "awq, evaluated with its weights")],
)
def test_a_quantised_checkpoint_says_what_was_evaluated(weights: bool, words: str) -> None:
    build = ConfigBuild(config_file="/c", config_sha256="", weights=weights)
    spec = factories.spec("org/m", build=build, quantization=Quantization.AWQ)
    assert wording.quantization_words(spec) == words
    assert wording.quantization_words(factories.spec()) == ""


def test_skipped_parts_of_repositories_are_named() -> None:
    def part(name: str, **fields: Any) -> Result:
        return factories.result(
            f"org/pipe#{name}", source="hub", checkpoint="org/pipe", part=Part.COMPONENT, **fields
        )

    seen = factories.view(part("unet"), part("safety_checker", status=Status.SKIPPED))
    assert wording.repository_words(seen) == (
        "repositories: 1 of 1 with a verdict on each evaluated part, 1 of them with skipped parts "
        "(component 1 of 1)"
    )
    remote = factories.result(
        "org/code", source="hub", checkpoint="org/code", status=Status.SKIPPED
    )
    assert wording.repository_words(factories.view(remote)) == (
        "repositories: 0 of 1 with a verdict on each evaluated part (nothing can be built 0 of 1)"
    )
    assert wording.repository_words(factories.view(factories.result())) == ""
