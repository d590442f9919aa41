"""What commands print, as a reviewer reads it in `screens.txt`; SCREENS=write writes that anew."""

import io
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console, RenderableType

from compilewatch import records
from compilewatch.analysis.leverage import By, Leverage, verified_fixes
from compilewatch.cli import tables
from compilewatch.records import Status
from compilewatch.report import terminal, wording
from compilewatch.report.terminal import console, model_panel, row_panel
from tests import example_run, factories
from tests.reviewing import assert_as_reviewed

RULE = "=" * 20

BRANCH = factories.graph_break()
HELPER = factories.graph_break(
    "helper",
    file="transformers/utils/import_utils.py",
    line=7,
    source_start=7,
    source=("  check(x)",),
)
BROKEN = (
    *(factories.result(n, breaks=(HELPER,), source="hub", downloads=500_000) for n in "AB"),
    factories.result(
        "C", breaks=(HELPER, factories.graph_break("other", "GB0059")), source="hub", downloads=1
    ),
)
FIX = records.ModelFix(
    model="A",
    target=records.Target(),
    detail="one graph",
    verified=True,
    single_graph=True,
    changes=("capture_scalar_outputs=True",),
    removed=frozenset({HELPER.fingerprint}),
    code="import torch\n",
    run="20260102",
)
FIXES = (FIX, replace(FIX, model="B"))


def of_families(count: int) -> RenderableType:
    one = [factories.result(f"M{n}", family=f"f{n}", downloads=1000 - n) for n in range(count)]
    return tables.summary_table(
        factories.view(*one, factories.result("Again", family="f0", downloads=1000))
    )


def not_passing() -> RenderableType:
    """By downloads, those that are expected last, and the rest counted."""
    failed: dict[str, Any] = {"status": records.Status.ERROR, "phase": records.Phase.CREATE}
    return tables.summary_table(
        factories.view(
            factories.result("Passing", downloads=9000),
            factories.result("Known", breaks=(BRANCH,), downloads=8000, expectation="reviewed"),
            factories.result("Broken", breaks=(BRANCH,), downloads=500),
            factories.result("Failed", detail="no weights at /data/x", downloads=1, **failed),
            *(factories.result(f"B{n}", breaks=(BRANCH,)) for n in range(10)),
        )
    )


def not_run() -> RenderableType:
    why = "needs the environment 'neuron': compilewatch env create neuron"
    given: dict[str, Any] = {
        "status": records.Status.UNSUPPORTED,
        "phase": records.Phase.SETUP,
        "detail": why,
    }
    of: dict[str, Any] = {"source": "hub", "checkpoint": "org/x", "part": records.Part.COMPONENT}
    parts = [factories.result(f"org/x#{n}", **of) for n in ("unet", "vae")]
    return tables.summary_table(
        factories.view(*parts, *(factories.result(n, **given) for n in "AB"))
    )


def dressed() -> RenderableType:
    """A break whose reason says its hint, an attempt, a part of a quantised repository."""
    page = wording.registry_page("GB0170")
    said = factories.graph_break(
        reason=f"Explanation. Hint: do that. See {page}",
        hints=("do that.", "do this."),
        line=412,
        source_start=412,
        source=("if x:", "    return"),
    )
    attempt = records.Attempt(
        tier=records.Tier.FAKE,
        status=records.Status.ERROR,
        phase=records.Phase.EAGER,
        code=records.AttemptCode.FAKE_UNSUPPORTED,
        reason="in eager, Error: aten._local_scalar_dense.default",
    )
    result = factories.result(
        "org/lora",
        breaks=(said,),
        attempts=(attempt,),
        source="hub",
        part=records.Part.BASE,
        quantization=records.Quantization.AWQ,
        family="acorn",
    )
    return model_panel(result)


def crashed() -> RenderableType:
    """The stack of a crash from its innermost frame."""
    frames = "\n".join(f'  File "f{n}.py", line 1 in f' for n in range(40))
    error = factories.error(
        type="crashed",
        message="SIGSEGV in eager",
        tail=f"noise\nFatal Python error: Segmentation fault\n\n{frames}",
        file="m_segv.py",
        line=1,
    )
    return model_panel(
        factories.result("A", status=records.Status.CRASHED, detail="SIGSEGV in eager", error=error)
    )


def of_ours(verbose: bool) -> RenderableType:
    error = factories.error(type="InputsError", message="say what x is", head="Traceback\n  ours")
    result = factories.result("A", status=records.Status.ERROR, detail="say what x is", error=error)
    return model_panel(result, verbose=verbose)


RUNS = (
    factories.run("20260102-030405-0001", shard="1/4"),
    factories.run("20260101-030405-0001", state="interrupted", wall_seconds=None),
)
EXAMPLE = example_run.view()
STEPS = Leverage(BROKEN)
SILENT = factories.result("D", breaks=(factories.graph_break("?", None, code="unattributed"),))
TWO_PLACES = factories.result("A", breaks=(HELPER, factories.graph_break("second")))
REFUSED = factories.result(
    fullgraph=records.FullgraphVerdict(accepted=False, code="GB0001", reason="because of that")
)
SHOWN: dict[str, Callable[[], RenderableType]] = {
    "the end of a sweep": lambda: tables.summary_table(EXAMPLE),
    "small families are added up": lambda: of_families(18),
    "what does not pass": not_passing,
    "what was not run, and repositories": not_run,
    "several targets": lambda: tables.summary_table(factories.view(*example_run.row())),
    "one result": lambda: tables.summary_table(factories.view(factories.result())),
    "changes": lambda: tables.changes_table(EXAMPLE),
    "no baseline": lambda: tables.changes_table(factories.view()),
    "runs": lambda: tables.runs_table(RUNS, Counter({(RUNS[0].id, Status.PASS): 1})),
    "no runs": lambda: tables.runs_table([], Counter()),
    **{
        f"result {number}": lambda result=result: model_panel(result)  # type: ignore[misc]
        for number, result in enumerate((*EXAMPLE.results, *example_run.row()))
    },
    "a break with everything": dressed,
    "a crash": crashed,
    "an error of compilewatch": lambda: of_ours(verbose=False),
    "an error of compilewatch, verbose": lambda: of_ours(verbose=True),
    "fullgraph rejects without a break": lambda: model_panel(REFUSED),
    "a model on all targets": lambda: row_panel(example_run.row()[:5]),
    "what to fix first": lambda: tables.fixes_table(STEPS),
    "what is left out": lambda: tables.fixes_table(Leverage((*BROKEN, SILENT), top=1)),
    "operators without a lowering": lambda: tables.fixes_table(
        Leverage(example_run.forecasts(), by=By.OPERATOR)
    ),
    "by id": lambda: tables.fixes_table(Leverage((TWO_PLACES,), by=By.ID)),
    "nothing to fix": lambda: tables.fixes_table(Leverage([factories.result("A")])),
    "verified fixes": lambda: tables.fixes_table(STEPS, verified_fixes(STEPS, BROKEN, FIXES)),
    "a fix of another model": lambda: tables.stored_fix_text(FIXES[0], BROKEN[2]),
    "a fix of the same model": lambda: tables.stored_fix_text(FIXES[0], BROKEN[0]),
}


def piped(renderable: RenderableType) -> str:
    stream = io.StringIO()
    console(stream).print(renderable)
    return stream.getvalue()


@pytest.fixture(autouse=True)
def _nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error's line has the code of the version of Transformers that is installed."""
    monkeypatch.setattr(terminal, "source_excerpt", lambda *_, **__: ())


def test_screens_are_as_reviewed() -> None:
    text = "\n".join(f"{RULE} {name}\n{piped(show())}" for name, show in SHOWN.items())
    assert_as_reviewed(text, Path(__file__).with_name("screens.txt"))
    # Text of others is neither markup nor commands to the terminal, and nothing is padded.
    assert "red [bold]" in text
    assert not {"\x1b", "\x00"} & set(text)


def test_they_fit_eighty_columns() -> None:
    for name in ("the end of a sweep", "changes", "runs", "result 0", "by id"):
        stream = io.StringIO()
        Console(file=stream, width=80).print(SHOWN[name]())
        assert max(map(len, stream.getvalue().splitlines())) <= 80


def test_lines_of_a_pipe_have_no_trailing_spaces_and_no_name_is_cut() -> None:
    name = "organisation/" + "a-very-long-name-" * 20
    change = msgspec.structs.replace(EXAMPLE.changes[0], model=name)
    result = factories.result(name, breaks=(example_run.BRANCH,))
    view = factories.view(result, baseline=factories.run("20260101-000000-0001"), changes=(change,))
    for table in (model_panel(result), tables.summary_table(view), tables.changes_table(view)):
        lines = piped(table).splitlines()
        assert any(name in line for line in lines)
        assert not any("…" in line or line != line.rstrip() for line in lines)


def test_colour_is_for_terminals_and_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    table = tables.summary_table(EXAMPLE)
    stream = io.StringIO()
    Console(file=stream, force_terminal=True, color_system="standard", width=80).print(table)
    assert "\x1b[3" in stream.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[3" not in piped(table)


@pytest.mark.parametrize("status", list(records.Status))
def test_every_status_can_be_shown(status: records.Status) -> None:
    result = factories.result(
        status=status, phase=records.Phase.SETUP, target=records.Target(dynamic=True)
    )
    assert piped(model_panel(result)).startswith("BertModel  dynamo/eval/dynamic")
