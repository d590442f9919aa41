"""The passes that make a file smaller before the reducer of Python code does."""

from __future__ import annotations

from compilewatch.extras.fixes.worker.minimal.checking import undefined, without_inputs

SOURCE = """import torch
def f(x, unused):
    return x.item()
torch.compile(f, backend='eager')(torch.ones(1), None)"""


def test_a_parameter_is_left_out_with_its_argument() -> None:
    tried: list[str] = []

    def shows_it(source: str) -> bool:
        tried.append(source)
        return "def f(x" in source

    smaller = without_inputs(SOURCE, shows_it)
    assert "def f(x):" in smaller
    assert smaller.endswith("(torch.ones(1))")
    assert len(tried) == 2


def test_a_name_that_nothing_defines_needs_no_run() -> None:
    assert undefined("import torch\nf(1)")
    assert not undefined("def f(x):\n    return len(x)\nf([1])")
