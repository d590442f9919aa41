"""The decompositions of a forecast against eager mode on the CPU."""

import pytest
import torch
from torch import Tensor

from compilewatch import data, files
from compilewatch.worker.targets.neuron import decompositions

pytestmark = pytest.mark.torch
aten = torch.ops.aten


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


ROWS = torch.tensor([[1, 4, 1], [0, 4, 3]])
MASK = torch.tensor([[True, False, True], [False, False, True]])

CALLS = {
    "embedding": (aten.embedding_dense_backward, (numbers(2, 3, 5), ROWS, 7, -1, False)),
    "embedding with padding": (
        aten.embedding_dense_backward,
        (numbers(2, 3, 5), ROWS, 7, 4, False),
    ),
    "embedding by frequency": (
        aten.embedding_dense_backward,
        (numbers(2, 3, 5), ROWS, 7, -1, True),
    ),
    "histogram": (aten.histc, (torch.tensor([0.0, 1, 1, 3, 7, 8, -1]), 4, 0, 7)),
    "histogram of the default": (aten.histc, (numbers(50), 10, -1, 1)),
    "copied rows": (aten.index_copy, (numbers(4, 3), 0, torch.tensor([2, 0]), numbers(2, 3))),
    "copied columns": (aten.index_copy, (numbers(4, 3), -1, torch.tensor([1]), numbers(4, 1))),
    "copied number": (aten.index_copy, (torch.ones(()), 0, torch.tensor(0), torch.zeros(()))),
    "masked": (aten.index_put, (numbers(2, 3), [MASK], torch.tensor(7.0))),
    "masked rows": (aten.index_put, (numbers(2, 3, 4), [MASK], torch.tensor([7.0]))),
    "masked columns": (aten.index_put, (numbers(4, 2, 3), [None, MASK], torch.tensor(7.0))),
    "scalar": (aten.scalar_tensor, (2.5,)),
    "sigmoid": (aten.sigmoid_backward, (numbers(3), numbers(3).sigmoid())),
    "largest of a column": (aten.topk, (numbers(6, 4), 2, 0)),
    "least": (aten.topk, (numbers(6, 4), 2, -1, False)),
    "silu": (aten.silu_backward, (numbers(3), numbers(3) * 4)),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_a_decomposition_computes_what_the_operator_computes(
    call: tuple[torch._ops.OpOverloadPacket, tuple[object, ...]],
) -> None:
    operator, arguments = call
    torch.testing.assert_close(
        decompositions.table()[operator.default](*arguments), operator(*arguments)
    )


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param((numbers(2, 3), [ROWS[0] % 2], numbers(3, 3)), id="indices"),
        pytest.param((numbers(2, 3), [MASK], numbers(3)), id="several values"),
        pytest.param((numbers(2, 3), [MASK], torch.tensor(7.0), True), id="accumulating"),
    ],
)
def test_what_is_no_choice_between_two_values_stays(arguments: tuple[object, ...]) -> None:
    assert decompositions.index_put(*arguments) is NotImplemented  # type: ignore[arg-type]


def test_a_histogram_whose_limits_depend_on_its_values_stays() -> None:
    assert decompositions.histc(numbers(3)) is NotImplemented


def test_torch_has_all_operators_of_the_table() -> None:
    rows = files.read_toml(data.NEURON_DECOMPOSITIONS, decompositions.Replaced)
    assert [name for name in rows.own if not hasattr(aten, name)] == []
    known = {str(operator) for operator in decompositions.table()}
    named = (*rows.torch, *rows.kernels)
    without = {name for name in named if not any(f"aten.{name}" in one for one in known)}
    assert without == {"index_select_backward"}  # torch decomposes it before
