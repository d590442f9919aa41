from __future__ import annotations

import subprocess
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
    assert "excerptpackage" not in sys.modules


def test_the_ends_of_a_file_cut_the_excerpt_short(package: Any) -> None:
    assert [line.number for line in source_excerpt("excerptpackage/inner/code.py", 1)] == [1, 2, 3]
    assert [line.number for line in source_excerpt("excerptpackage/inner/code.py", 5)] == [3, 4, 5]


def test_a_module_without_a_package_is_found(package: Any) -> None:
    assert source_excerpt("excerptmodule.py", 1) == ((1, "alone"),)


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


@pytest.mark.process
def test_transformers_is_read_without_importing_it_or_torch() -> None:
    program = (
        "import sys; from compilewatch.report.terminal import source_excerpt;"
        "lines = source_excerpt('transformers/models/bert/modeling_bert.py', 1);"
        "assert lines and not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
