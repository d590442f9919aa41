"""A person's own model: its inputs from the callable they name, or from its forward."""

import itertools
from pathlib import Path

import pytest
from torch import nn

from compilewatch.errors import InputsError
from compilewatch.records import FactoryBuild
from tests.integration.worker.example_inputs.conftest import Make

pytestmark = pytest.mark.torch

numbers = itertools.count()


def build(folder: Path, make: str) -> FactoryBuild:
    """A build whose inputs are `make` of a module with the given statements."""
    name = f"own_inputs_{next(numbers)}"
    (folder / f"{name}.py").write_text(f"import torch\ndef make():\n    {make}\n")
    return FactoryBuild(factory=f"{name}:model", path=str(folder), inputs=f"{name}:make")


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
    make: Make, tmp_path: Path, returned: str, args: int, kwargs: list[str]
) -> None:
    inputs = make(nn.Identity(), build=build(tmp_path, f"return {returned}"))
    assert (len(inputs.args), list(inputs.kwargs)) == (args, kwargs)
    assert inputs.strategy == "factory"


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("return 3", "returned int"),
        ("raise OSError('no\\nfile')", "raised OSError: no"),
        ("pass\ndel make", "cannot be found"),
    ],
)
def test_a_faulty_callable_is_one_line(
    make: Make, tmp_path: Path, statement: str, message: str
) -> None:
    with pytest.raises(InputsError, match=message) as caught:
        make(nn.Identity(), build=build(tmp_path, statement))
    assert "\n" not in str(caught.value)
