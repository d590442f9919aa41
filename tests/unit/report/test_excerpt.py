from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from compilewatch.report.terminal import source_excerpt


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An importable package that would betray that it was imported."""
    folder = tmp_path / "excerptpackage"
    (folder / "inner").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise AssertionError('imported')\n")
    (folder / "inner" / "code.py").write_text("one\ntwo\nthree\nfour\nfive\n")
    (tmp_path / "excerptmodule.py").write_text("alone\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder


def test_lines_around_a_place_are_found_without_an_import(package: Any) -> None:
    assert source_excerpt("excerptpackage/inner/code.py", 3, around=1) == (
        (2, "two"),
        (3, "three"),
        (4, "four"),
    )
    numbers = {
        place: [line.number for line in source_excerpt("excerptpackage/inner/code.py", place)]
        for place in (1, 5)
    }
    assert numbers == {1: [1, 2, 3], 5: [3, 4, 5]}
    assert source_excerpt("excerptmodule.py", 1) == ((1, "alone"),)
    assert "excerptpackage" not in sys.modules


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("excerptpackage/inner/code.py", 6),
        ("excerptpackage/inner/code.py", 0),
        ("excerptpackage/inner/missing.py", 1),
        ("excerptpackage", 1),
        ("no_such_package/code.py", 1),
        ("excerptpackage.inner/code.py", 1),
        ("<string>", 1),
        ("?", 0),
        ("", 1),
        ("/etc/hostname", 1),
    ],
)
def test_what_cannot_be_found_gives_nothing(package: Any, file: Any, line: Any) -> None:
    assert source_excerpt(file, line) == ()
