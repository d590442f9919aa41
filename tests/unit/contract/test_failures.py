from __future__ import annotations

import faulthandler
import importlib
import runpy
import sys
from pathlib import Path

import pytest

from compilewatch.contract import failures
from compilewatch.errors import InputsError


class DataDependentOutputException(Exception):  # noqa: N818  (torch's own name)
    pass


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001
        return caught


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ModuleNotFoundError("No module named 'timm'"), "missing_package"),
        (ImportError("X requires the timm library but it was not found"), "missing_package"),
        (DataDependentOutputException("aten._local_scalar_dense.default"), "data_dependent"),
        (RuntimeError("Tensor.item() cannot be called on meta tensors"), "data_dependent"),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"), "shape_mismatch"),
        (RuntimeError("shape '[2, 3]' is invalid for input of size 5"), "shape_mismatch"),
        (RuntimeError("Expected inputs of BF16 type but got mat_a.dtype"), "dtype_mismatch"),
        (RuntimeError("expected scalar type Float but found Half"), "dtype_mismatch"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "out_of_memory"),
        (MemoryError(), "out_of_memory"),
        (IndexError("index out of range in self"), "index_out_of_range"),
        (TypeError("forward() got an unexpected keyword argument"), "type_error"),
        (KeyError("attn"), "key_error"),
        (SystemExit(1), "system_exit"),
    ],
)
def test_codes_are_few_short_words(error: BaseException, code: str) -> None:
    assert failures.error_code(error) == code


def test_a_code_is_found_through_what_wraps_it() -> None:
    inner = DataDependentOutputException("x")
    outer = RuntimeError("while running a node")
    outer.__cause__ = inner
    assert failures.error_code(outer) == "data_dependent"


def test_a_long_traceback_keeps_both_ends() -> None:
    record = failures.error_record(raised(ValueError("begin " + "x" * 100_000 + " end")))
    assert record.head.startswith("Traceback")
    assert "begin xxx" in record.head
    assert record.tail.endswith("xxx end\n")
    assert len(record.head) == len(record.tail) == failures.KEPT_CHARACTERS >= 8192
    assert "begin" in record.message
    assert record.message.endswith("end")
    assert len(record.message) < 10_000


def test_a_short_traceback_is_kept_in_full_and_once() -> None:
    record = failures.error_record(raised(ValueError("boom")))
    assert record.head.endswith("ValueError: boom\n")
    assert record.tail == ""
    assert (record.type, record.message) == ("ValueError", "boom")


def test_the_place_is_the_innermost_line_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/inner.py").write_text("def inner():\n    raise ValueError('boom')\n")
    (tmp_path / "modelcode.py").write_text(
        "def forward(call):\n    # the line to look at is the next\n    call()\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    scope: dict[str, object] = {}
    for name in ("torch/inner.py", "modelcode.py"):
        path = tmp_path / name
        exec(compile(path.read_text(), str(path), "exec"), scope)
    try:
        scope["forward"](scope["inner"])  # type: ignore[operator]
    except ValueError as error:
        record = failures.error_record(error)
    assert (record.file, record.line, record.function) == ("modelcode.py", 3, "forward")


def _placed(error: BaseException) -> tuple[str | None, int | None]:
    record = failures.error_record(error)
    return record.file, record.line


def test_a_syntax_error_is_at_its_own_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wrongsyntax.py").write_text("import os\n\ndef f(:\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SyntaxError) as caught:
        importlib.import_module("wrongsyntax")
    assert _placed(caught.value) == ("wrongsyntax.py", 3)


def test_a_persons_own_file_comes_before_what_it_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ctypes` of the standard library and installed packages are not where one can act."""
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "installedcode.py").write_text("import json\njson.loads('{')\n")
    (tmp_path / "owncode.py").write_text("import installedcode\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match="Expecting") as caught:
        runpy.run_path(str(tmp_path / "owncode.py"))
    assert _placed(caught.value) == ("owncode.py", 1)


def test_an_error_of_ours_has_no_place_and_keeps_its_traceback() -> None:
    record = failures.error_record(raised(InputsError("say what x is")))
    assert (record.file, record.line, record.message) == (None, None, "say what x is")
    assert "Traceback" in record.head


def test_a_dump_names_the_persons_file_relative_to_their_folder() -> None:
    dump = (
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n"
        '  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at\n'
        '  File "/home/me/nets/inner/m_segv.py", line 8 in forward\n'
        '  File "/venv/lib/python3.11/site-packages/torch/nn/module.py", line 1 in _call_impl\n'
    )
    assert failures.place_in_dump(dump, ("/home/me/nets",)) == ("inner/m_segv.py", 8, "forward")


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt])
def test_an_exception_that_cannot_be_printed_has_a_record_all_the_same(
    kind: type[BaseException],
) -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise kind("no words")

    record = failures.error_record(raised(MuteError()))
    assert record.code == "mute_error"
    assert "__str__" in record.message


def test_one_line_is_one_line_and_no_essay() -> None:
    assert failures.one_line(ValueError("first\nsecond")) == "ValueError: first"
    assert failures.one_line(ValueError()) == "ValueError"
    assert len(failures.one_line(ValueError("x" * 999))) == 200


def test_files_are_relative_to_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["", "/lib", "/lib/site-packages/"])
    assert failures.relative_file("/lib/site-packages/torch/nn/m.py") == "torch/nn/m.py"
    assert failures.relative_file("/lib/json/decoder.py") == "json/decoder.py"
    assert failures.relative_file("/library/a/b/c.py") == "b/c.py"


def test_a_place_is_read_from_a_faulthandler_dump(tmp_path: Path) -> None:
    with (tmp_path / "dump").open("w+") as file:
        faulthandler.dump_traceback(file, all_threads=False)
        file.seek(0)
        place = failures.place_in_dump(file.read())
    assert place is not None
    assert place[2] == "test_a_place_is_read_from_a_faulthandler_dump"
    assert failures.place_in_dump("no stack here") is None
