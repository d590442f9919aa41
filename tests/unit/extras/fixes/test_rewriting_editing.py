"""A function of a library runs with other lines, only while the context is open."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from compilewatch.extras.fixes.rewriting.changes import edited

LIBRARY = """
import functools


def traced(function):
    @functools.wraps(function)
    def wrapper(*args):
        return ["traced", function(*args)]

    return wrapper


class Base:
    def name(self):
        return "base"


class Model(Base):
    def name(self):
        first = "model"
        second = super().name()
        return f"{first} of {second}"

    @traced
    def decorated(self):
        value = 1
        return value

    @staticmethod
    def fixed():
        value = 1
        return value

    @property
    def size(self):
        value = 1
        return value

    def fails(self):
        value = 0
        # A comment that remains.
        return 1 / value


def twice():
    value = 1
    value = 1
    return value


def squares(numbers):
    factor = 2
    return [factor * each for each in numbers]
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / "some_library.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("some_library")
    del sys.modules["some_library"]


@pytest.mark.parametrize(
    ("path", "call", "expected"),
    [
        ("Model.decorated", "Model().decorated()", ["traced", 2]),
        ("Model.fixed", "Model.fixed()", 2),
        ("Model.size", "Model().size", 2),
    ],
)
def test_an_edit_is_in_force_while_the_context_is_open(
    library: ModuleType, path: str, call: str, expected: object
) -> None:
    names = {"Model": library.Model}
    before = eval(call, names)
    with edited("some_library", path, ("        value = 1\n", "        value = 2\n")):
        assert eval(call, names) == expected
    assert eval(call, names) == before


def test_a_method_with_super_and_a_function_with_a_comprehension(library: ModuleType) -> None:
    edit = ('        first = "model"\n', '        first = "edited"\n')
    with edited("some_library", "Model.name", edit):
        assert library.Model().name() == "edited of base"
    with edited("some_library", "squares", ("    factor = 2\n", "    factor = 3\n")):
        assert library.squares([1, 2]) == [3, 6]


def test_edits_of_one_function_add_up_and_end_in_turn(library: ModuleType) -> None:
    first = ('        first = "model"\n', '        first = "edited"\n')
    second = ("        second = super().name()\n", "        second = super().name().upper()\n")
    with edited("some_library", "Model.name", first):
        with edited("some_library", "Model.name", second):
            assert library.Model().name() == "edited of BASE"
        assert library.Model().name() == "edited of base"
    assert library.Model().name() == "model of base"


def test_an_edit_may_change_what_another_inserted_before(library: ModuleType) -> None:
    inserted = ("    factor = 2\n", "    numbers = list(numbers)\n    factor = 2\n")
    changed = ("    factor = 2\n", "    factor = 3\n")
    with (
        edited("some_library", "squares", inserted),
        edited("some_library", "squares", changed),
    ):
        assert library.squares(iter([1])) == [3]


def test_the_same_edit_is_the_same_code_at_each_entry(library: ModuleType) -> None:
    """Or PyTorch would compile at each entry."""
    edit = ("    factor = 2\n", "    factor = 3\n")
    codes = []
    for _ in range(2):
        with edited("some_library", "squares", edit):
            codes.append(library.squares.__code__)
    assert codes[0] is codes[1]


def test_lines_keep_their_numbers(library: ModuleType) -> None:
    line = LIBRARY.splitlines().index("        return 1 / value") + 1
    with (
        edited(
            "some_library",
            "Model.fails",
            ("        value = 0\n", "        a = 0\n        value = a\n"),
        ),
        pytest.raises(ZeroDivisionError) as raised,
    ):
        library.Model().fails()
    assert traceback.extract_tb(raised.tb)[-1].lineno == line


def test_an_edit_of_several_lines_on_fewer(library: ModuleType) -> None:
    old = '        first = "model"\n        second = super().name()\n'
    with edited("some_library", "Model.name", (old, "        first = second = super().name()\n")):
        assert library.Model().name() == "base of base"


@pytest.mark.parametrize(
    ("path", "old"), [("squares", "    factor = 4\n"), ("twice", "    value = 1\n")]
)
def test_lines_that_are_not_there_once_are_an_error(
    library: ModuleType, path: str, old: str
) -> None:
    function = getattr(library, path)
    before = function.__code__
    with pytest.raises(RuntimeError, match="differs"), edited("some_library", path, (old, "")):
        pass
    assert function.__code__ is before
