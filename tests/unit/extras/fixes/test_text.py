"""A fix as it is printed."""

import io

import pytest
from rich.console import Console

from compilewatch.extras.fixes import records
from compilewatch.extras.fixes.code import pasteable
from compilewatch.extras.fixes.text import fix_panel

LONG = "# a line of code that is longer than a terminal is wide, and must not be cut or broken"
REWRITE, SETTING, USAGE = records.FixKind.REWRITE, records.FixKind.SETTING, records.FixKind.USAGE


@pytest.mark.parametrize(
    ("kinds", "verbose", "has_diff", "has_code"),
    [
        ((REWRITE,), False, True, False),
        ((REWRITE,), True, True, True),
        ((USAGE, REWRITE), False, True, True),
        ((SETTING,), False, False, True),
    ],
)
def test_lines_to_change_are_shown_as_such_and_code_can_be_pasted(
    kinds: tuple[records.FixKind, ...], verbose: bool, has_diff: bool, has_code: bool
) -> None:
    changes = tuple(
        records.FixChange(
            name=k, kind=k, summary="It.", lines=(LONG, "pass"), holds_if=(f"If {k}.",)
        )
        for k in kinds
    )
    script = records.Verification(steps=(), tried=("12 calls",), holds_if=("If the script.",))
    fix = records.Fix(
        model="Net",
        target="dynamo",
        status=records.FixStatus.VERIFIED,
        changes=changes,
        code=pasteable(changes, "A fix.", script.holds_if),
        patch="-old\n+new\n" if REWRITE in kinds else "",
        verification=script,
    )
    console = Console(file=io.StringIO(), width=60, no_color=True)
    with console.capture() as captured:
        console.print(fix_panel(fix, verbose=verbose), crop=False)
    text, _, verification = captured.get().partition("\nVerification")
    assert ("+new" in text) is has_diff
    assert ("def compilable" in text) is has_code
    assert ("--patch FILE" in text) is not has_code
    assert ("\nor, without a change of the file" in text) is (has_diff and has_code)
    # It ends with the conditions that no script can try.
    conditions = text.partition("Holds if:")[2]
    assert all(f"If {kind}." in conditions for kind in (*kinds, "the script"))
    assert "tried" in verification
    if has_code:
        code = text[text.index("import contextlib") :]
        compile(code, "pasted.py", "exec")
        assert LONG in code
