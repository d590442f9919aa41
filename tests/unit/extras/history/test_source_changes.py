from __future__ import annotations

from compilewatch.extras.history.bisect import changed_lines

BEFORE = [f"line {number}" for number in range(1, 41)]
AFTER = [*BEFORE[:4], "changed near the top", *BEFORE[5:34], "new", *BEFORE[34:]]


def test_changes_come_with_their_context_in_order() -> None:
    assert changed_lines(BEFORE, AFTER) == (
        "@@ -3,5 +3,5 @@",
        " line 3",
        " line 4",
        "-line 5",
        "+changed near the top",
        " line 6",
        " line 7",
        "@@ -33,4 +33,5 @@",
        " line 33",
        " line 34",
        "+new",
        " line 35",
        " line 36",
    )


def test_what_contains_a_marked_line_comes_first_on_either_side() -> None:
    assert changed_lines(BEFORE, AFTER, marked_before={35})[0] == "@@ -33,4 +33,5 @@"
    assert changed_lines(BEFORE, AFTER, marked_after={35})[0] == "@@ -33,4 +33,5 @@"
    assert changed_lines(BEFORE, AFTER, marked_after={20})[0] == "@@ -3,5 +3,5 @@"


def test_many_lines_are_cut_and_counted() -> None:
    found = changed_lines(BEFORE, AFTER, limit=6)
    assert found[-1] == "… and 7 more lines"
    assert len(found) == 7


def test_equal_files_have_no_changes_and_a_new_one_is_all_new() -> None:
    assert changed_lines(BEFORE, BEFORE) == ()
    assert changed_lines([], ["a"]) == ("@@ -1,0 +1,1 @@", "+a")
