import faulthandler
import importlib
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compilewatch.contract import failures
from compilewatch.errors import InputsError
from compilewatch.records import ErrorRecord


class DataDependentOutputException(Exception):  # noqa: N818  (torch's own name)
    pass


def record_of(error: BaseException, cause: BaseException | None = None) -> ErrorRecord:
    try:
        raise error from cause
    except BaseException as caught:  # noqa: BLE001
        return failures.error_record(caught)


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
def test_codes_are_few_short_words_also_through_what_wraps_an_error(
    error: BaseException, code: str
) -> None:
    assert failures.error_code(error) == code
    if isinstance(error, DataDependentOutputException):
        assert record_of(RuntimeError("while running a node"), error).code == code


def test_a_traceback_keeps_both_ends_once() -> None:
    record = record_of(ValueError("begin " + "x" * 100_000 + " end"))
    assert record.head.startswith("Traceback")
    assert "begin xxx" in record.head
    assert record.tail.endswith("xxx end\n")
    assert len(record.head) == len(record.tail) == failures.KEPT_CHARACTERS >= 8192
    assert record.message.startswith("begin")
    assert record.message.endswith("end")
    assert len(record.message) < 10_000
    record = record_of(ValueError("boom"))
    assert record.head.endswith("ValueError: boom\n")
    assert (record.tail, record.type, record.message) == ("", "ValueError", "boom")


def test_the_place_is_where_a_person_can_act(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither torch, nor the standard library, nor what the model's own file has called."""
    for name, text in {
        "torch/inner.py": "def inner():\n    raise ValueError('boom')\n",
        "modelcode.py": "def forward(call):\n    # next line\n    call()\n",
        "site-packages/installedcode.py": "import json\njson.loads('{')\n",
        "owncode.py": "import installedcode\n",
        "wrongsyntax.py": "import os\n\ndef f(:\n    pass\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    monkeypatch.syspath_prepend(str(tmp_path))
    scope: dict[str, Any] = {}
    for name in ("torch/inner.py", "modelcode.py"):
        exec(compile((tmp_path / name).read_text(), str(tmp_path / name), "exec"), scope)

    def place(call: Callable[[], object]) -> tuple[str | None, int | None, str | None]:
        with pytest.raises((ValueError, SyntaxError)) as caught:
            call()
        record = failures.error_record(caught.value)
        return record.file, record.line, record.function

    called = place(lambda: scope["forward"](scope["inner"]))
    assert called == ("modelcode.py", 3, "forward")
    imported = place(lambda: runpy.run_path(str(tmp_path / "owncode.py")))
    assert imported[:2] == ("owncode.py", 1)
    wrong = place(lambda: importlib.import_module("wrongsyntax"))
    assert wrong[:2] == ("wrongsyntax.py", 3)


def test_an_error_of_ours_has_no_place_and_keeps_its_traceback() -> None:
    record = record_of(InputsError("say what x is"))
    assert (record.file, record.line, record.message) == (None, None, "say what x is")
    assert "Traceback" in record.head


def test_an_exception_that_cannot_be_printed_has_a_record_all_the_same() -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise KeyboardInterrupt("no words")

    record = record_of(MuteError())
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


def test_a_place_is_read_from_a_dump_of_faulthandler(tmp_path: Path) -> None:
    with (tmp_path / "dump").open("w+") as file:
        faulthandler.dump_traceback(file, all_threads=False)
        file.seek(0)
        place = failures.place_in_dump(file.read())
    assert place is not None
    assert place[2] == "test_a_place_is_read_from_a_dump_of_faulthandler"
    assert failures.place_in_dump("no stack here") is None
    dump = (
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n"
        '  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at\n'
        '  File "/home/me/nets/inner/m_segv.py", line 8 in forward\n'
        '  File "/venv/lib/python3.11/site-packages/torch/nn/module.py", line 1 in _call_impl\n'
    )
    assert failures.place_in_dump(dump, ("/home/me/nets",)) == ("inner/m_segv.py", 8, "forward")
