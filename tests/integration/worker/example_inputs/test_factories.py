"""A person's own model: its inputs from the callable they name, or from its forward."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from torch import nn

from compilewatch.errors import InputsError
from compilewatch.records import FactoryBuild
from tests.integration.worker.example_inputs.conftest import Make

pytestmark = pytest.mark.torch

_numbers = itertools.count()

Written = Callable[[str], FactoryBuild]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """A build whose inputs are `make` of a module with the given source."""

    def write(source: str) -> FactoryBuild:
        name = f"own_inputs_{next(_numbers)}"
        (tmp_path / f"{name}.py").write_text("import torch\n" + source)
        return FactoryBuild(factory=f"{name}:model", path=str(tmp_path), inputs=f"{name}:make")

    return write


@pytest.mark.parametrize(
    ("returned", "args", "kwargs"),
    [
        ("(torch.ones(2, 3),)", 1, []),
        ("{'x': torch.ones(2, 3)}", 0, ["x"]),
        ("(torch.ones(2, 3),), {'y': 1}", 1, ["y"]),
        ("torch.ones(2, 3)", 1, []),
    ],
)
def test_what_a_callable_may_return(
    make: Make, written: Written, returned: str, args: int, kwargs: list[str]
) -> None:
    build = written(f"def make():\n    return {returned}\n")
    inputs = make(nn.Identity(), build=build)
    assert (len(inputs.args), list(inputs.kwargs)) == (args, kwargs)
    assert inputs.strategy == "factory"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def make():\n    return 3\n", "returned int"),
        ("def make():\n    raise OSError('no\\nfile')\n", "raised OSError: no"),
        ("def other():\n    return ()\n", "cannot be found"),
    ],
)
def test_a_faulty_callable_is_one_line(
    make: Make, written: Written, source: str, message: str
) -> None:
    with pytest.raises(InputsError, match=message) as caught:
        make(nn.Identity(), build=written(source))
    assert "\n" not in str(caught.value)
