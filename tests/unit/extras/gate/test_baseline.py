"""The file of known breaks: what it holds, how git merges it, and how a session renews it."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from compilewatch.errors import ConfigError
from compilewatch.extras.gate.baseline import ATTRIBUTES, NAME, KnownBreak, load, renewal, save

BRANCH = KnownBreak(
    file="src/net.py", function="Net.forward", code="GB0170", text="if x:", check="t::a"
)
PRINT = replace(BRANCH, code="GB0059", text="print(x)", check="t::b")


def test_what_is_written_is_read_again_one_break_a_line_in_one_order(tmp_path: Path) -> None:
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    accepted = replace(PRINT, why="a debug build only", link="https://example.org/1")
    assert save(one, [BRANCH, accepted, BRANCH])
    save(other, [accepted, BRANCH, BRANCH])
    assert not save(one, [accepted, BRANCH, BRANCH])
    assert one.read_bytes() == other.read_bytes()
    assert load(one) == (accepted, BRANCH, BRANCH)
    lines = one.read_text().splitlines()
    assert len(lines) == 5
    assert "line" not in json.loads(one.read_text())["breaks"][0]


def test_no_file_is_no_known_break(tmp_path: Path) -> None:
    assert load(tmp_path / "none.json") == ()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "repair it, or delete it and run pytest with --compilewatch-update"),
        ("[]", "not a baseline"),
        ('{"schema": 2}', "not a baseline"),
        ('{"schema": 2, "breaks": [{"line": 3}]}', "not a baseline"),
        ('{"schema": 3, "breaks": []}', "upgrade compilewatch"),
        ("<<<<<<< HEAD\n", "conflict markers of a merge: delete them"),
    ],
)
def test_a_damaged_file_is_named_in_one_line(tmp_path: Path, content: str, problem: str) -> None:
    path = tmp_path / NAME
    path.write_text(content)
    with pytest.raises(ConfigError) as raised:
        load(path)
    assert problem in str(raised.value)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


MARKERS = ("<" * 7, "=" * 7, ">" * 7)


def git(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    user = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main")
    command = ["git", *user, *arguments]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


@pytest.mark.process
@pytest.mark.parametrize("before", [(), (BRANCH,), (PRINT,)])
@pytest.mark.parametrize("attributes", [True, False])
def test_two_additions_are_merged_by_git_or_by_deleting_the_markers_of_the_conflict(
    tmp_path: Path, before: tuple[KnownBreak, ...], attributes: bool
) -> None:
    """Git itself merges: both add next to each other, which is a conflict without an attribute."""
    path = tmp_path / NAME
    ours, theirs = (replace(BRANCH, file="src/o.py", text=text) for text in ("if a:", "if b:"))
    save(path, before)
    if not attributes:
        (tmp_path / ATTRIBUTES).unlink()
    for arguments in (("init",), ("add", "."), ("commit", "-m", "0"), ("checkout", "-b", "b")):
        git(tmp_path, *arguments)
    save(path, [*before, theirs])
    git(tmp_path, "commit", "-am", "1")
    git(tmp_path, "checkout", "main")
    save(path, [*before, ours, BRANCH])
    git(tmp_path, "commit", "-am", "2")
    merged = git(tmp_path, "merge", "b")
    assert (merged.returncode == 0) is attributes, merged.stdout
    kept = [line for line in path.read_text().splitlines() if line[:7] not in MARKERS]
    path.write_text("\n".join(kept))
    assert load(path) == tuple(sorted((*before, BRANCH, ours, theirs)))


def removed(known: KnownBreak) -> bool:
    return known.text == "removed"


def test_a_break_is_resolved_if_its_check_ended_or_its_statement_was_removed() -> None:
    before = (PRINT, BRANCH)
    assert renewal(before, {"t::a": []}, {"t::a"}, removed).resolved == (BRANCH,)
    assert renewal(before, {"t::a": []}, set(), removed).resolved == ()
    assert renewal(before, {"t::a": [(PRINT, PRINT)]}, {"t::a", "t::b"}, removed).kept == (
        replace(PRINT, check="t::a"),
    )
    other = replace(BRANCH, text="removed")
    assert renewal((other,), {"t::b": []}, {"t::b"}, removed).resolved == (other,)


def test_a_renewed_baseline_keeps_what_people_wrote_and_what_other_checks_meet() -> None:
    accepted = replace(BRANCH, why="because", link="https://example.org/1")
    moved = replace(BRANCH, function="Net.helper")
    twice = renewal((PRINT, accepted), {"t::a": [(moved, accepted)]}, {"t::a"}, removed)
    assert twice.resolved == ()
    assert twice.known == (PRINT, replace(accepted, function="Net.helper"))
    met = {"t::a": [(BRANCH, None), (BRANCH, None)], "t::c": [(BRANCH, None)]}
    assert renewal((), met, {"t::a", "t::c"}, removed).known == (BRANCH, BRANCH)


def test_what_people_wrote_waits_for_the_check_that_may_meet_it_elsewhere() -> None:
    """A statement that is gone may have moved, which a session without its check cannot see."""
    accepted = replace(BRANCH, text="removed", why="because")
    partial = renewal((accepted, replace(accepted, why="")), {"t::b": []}, {"t::b"}, removed)
    assert len(partial.resolved) == 2
    assert partial.known == (accepted,)
    moved = replace(accepted, function="Net.helper", why="")
    complete = renewal(partial.known, {"t::a": [(moved, accepted)]}, {"t::a"}, removed)
    assert complete.known == (replace(moved, why="because"),)
    assert renewal(partial.known, {"t::a": []}, {"t::a"}, removed).known == ()
