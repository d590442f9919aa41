from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console

from compilewatch.extras.fixes.code import pasteable
from compilewatch.extras.fixes.records import (
    Fix,
    FixChange,
    FixCost,
    FixKind,
    FixStatus,
    Verification,
)
from compilewatch.extras.fixes.text import cost_words, fix_panel


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        (
            b'{"eager": 0.012, "without": 0.008, "with": 0.004}',
            "A call takes 12.0 ms in eager mode, 8.00 ms compiled without the fix, and 4.00 ms "
            "with it (2.00 times as fast): Inductor, one thread, medians.",
        ),
        (
            b'{"eager": 0.012, "without": null, "with": 0.004}',
            "A call takes 12.0 ms in eager mode, no time that could be measured compiled without "
            "the fix, and 4.00 ms with it: Inductor, one thread, medians.",
        ),
    ],
)
def test_what_a_script_prints_becomes_a_sentence(printed: bytes, expected: str) -> None:
    assert cost_words(msgspec.json.decode(printed, type=FixCost)) == expected


LONG = "# a line of code that is longer than a terminal is wide, and must not be cut or broken"


def change(kind: FixKind) -> FixChange:
    return FixChange(
        name=kind.value,
        kind=kind,
        summary="What it does.",
        lines=(LONG, "pass"),
        holds_if=(f"A condition of a {kind.value}.",),
    )


def printed(*kinds: FixKind, verbose: bool = False) -> str:
    changes = tuple(change(kind) for kind in kinds)
    script = Verification(steps=(), tried=("12 calls",), holds_if=("A condition of the script.",))
    found = Fix(
        model="Net",
        target="dynamo",
        status=FixStatus.VERIFIED,
        changes=changes,
        code=pasteable(changes, "A fix.", script.holds_if),
        patch="-old\n+new\n" if FixKind.REWRITE in kinds else "",
        verification=script,
    )
    console = Console(file=io.StringIO(), width=60, no_color=True)
    with console.capture() as captured:
        console.print(fix_panel(found, verbose=verbose), crop=False)
    return captured.get()


@pytest.mark.parametrize(
    ("kinds", "verbose", "has_diff", "has_code"),
    [
        ((FixKind.REWRITE,), False, True, False),
        ((FixKind.REWRITE,), True, True, True),
        ((FixKind.SETTING, FixKind.REWRITE), False, True, True),
        ((FixKind.SETTING,), False, False, True),
    ],
)
def test_lines_to_change_are_shown_as_such(
    kinds: tuple[FixKind, ...], verbose: bool, has_diff: bool, has_code: bool
) -> None:
    text = printed(*kinds, verbose=verbose)
    assert ("+new" in text) is has_diff
    assert ("def compilable" in text) is has_code
    assert ("--patch FILE" in text) is not has_code
    assert ("\nor, without a change of the file" in text) is (has_diff and has_code)


@pytest.mark.parametrize("kinds", [(FixKind.REWRITE,), (FixKind.USAGE, FixKind.REWRITE)])
def test_a_fix_ends_with_the_conditions_that_no_script_can_try(kinds: tuple[FixKind, ...]) -> None:
    fix, _, verification = printed(*kinds).partition("\nVerification")
    _, _, conditions = fix.partition("Holds if:")
    for kind in kinds:
        assert f"A condition of a {kind.value}." in conditions
    assert "A condition of the script." in conditions
    assert "tried" in verification


def test_printed_code_can_be_pasted() -> None:
    text = printed(FixKind.SETTING)
    code = text[text.index("import contextlib") : text.index("Verification")]
    compile(code, "pasted.py", "exec")
    assert LONG in code
