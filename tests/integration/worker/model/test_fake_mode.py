"""What the fake tier knows: values of inputs, none of weights."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
)

from compilewatch.worker.model.construct import to_fake
from compilewatch.worker.model.fake_mode import InputAwareFakeMode, values_shown

pytestmark = pytest.mark.torch


@pytest.fixture
def mode() -> InputAwareFakeMode:
    return InputAwareFakeMode()


def test_values_that_follow_from_inputs_can_be_read(mode: Any) -> None:
    sizes = mode.known(torch.tensor([[1, 4, 6], [1, 2, 2]]))
    with mode:
        assert sizes.prod(-1).tolist() == [24, 4]
        assert (sizes[:, 1] > 2).nonzero().tolist() == [[0]]
        assert (torch.arange(3) + sizes[0, 0]).sum().item() == 6
        assert torch.repeat_interleave(torch.arange(2), sizes[:, 1]).tolist() == [0] * 4 + [1] * 2
    # A known mask gives the size of what it selects.
    features = mode.from_tensor(torch.randn(3, 2, 5))
    mask = mode.known(torch.tensor([[True, False], [True, True], [False, False]]))
    with mode:
        assert features[mask].shape == (3, 5)
        assert features[:, mask[1]].shape == (3, 2, 5)


def test_other_values_cannot(mode: Any) -> None:
    known, weight = mode.known(torch.arange(4.0)), mode.from_tensor(torch.ones(4))
    with mode:
        written, counted = torch.zeros(4), torch.zeros((), dtype=torch.long)
        written[1:] = weight[1:]
        unknown = [weight, torch.ones(4) + weight, written]
        unknown += [torch.empty_like(known), known.new_empty(3), torch.empty(2)]
        for tensor in (*unknown, torch.multinomial(known, 1)):
            with pytest.raises(DataDependentOutputException):
                tensor.sum().item()
        with pytest.raises(DynamicOutputShapeException):
            weight.nonzero()
        counted += 2
        assert counted.item() == 2


def test_an_assertion_is_taken_to_hold_about_weights_and_checked_about_inputs(mode: Any) -> None:
    known, weight = mode.known(torch.arange(3)), mode.from_tensor(torch.ones(4))
    with mode:
        torch._check_tensor_all(weight > 0)
        with pytest.raises(DataDependentOutputException):
            bool((weight > 0).all())
        torch._check_tensor_all(known >= 0)
        with pytest.raises(RuntimeError):
            torch._check_tensor_all(known > 0)


class Sized(nn.Module):
    """Breaks, and then uses a whole number that it read from a tensor as a size."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
        x = self.linear(x)
        height, width = sizes
        torch._dynamo.graph_break()
        return (x.view(height, width, -1) * self.linear.weight[0, 0]).sum()


def test_dynamo_captures_what_it_does_with_real_tensors(mode: Any) -> Any:
    graphs: list[str] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph.print_readable(print_output=False))
        return graph.forward

    x, sizes = torch.randn(6, 6), torch.tensor([2, 3])
    with torch.no_grad():
        torch._dynamo.reset()
        torch.compile(Sized().eval(), backend=backend)(x, sizes)
        of_real = [*graphs]
        graphs.clear()
        with torch.device("meta"):
            fake = to_fake(Sized().eval(), mode)
        torch._dynamo.reset()
        with mode, values_shown():
            torch.compile(fake, backend=backend)(mode.known(x), mode.known(sizes))
    torch._dynamo.reset()
    assert graphs == of_real != []


def test_a_number_of_numpy_is_guarded_as_with_real_tensors(mode: Any) -> None:
    """A guard that a fake tensor fails compiles the frame again at each call."""

    def scaled(x: torch.Tensor, factor: Any) -> torch.Tensor:
        return x * factor

    compilations: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        compilations.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(scaled, backend=backend)
    x, factor = mode.from_tensor(torch.ones(3)), np.float32(2.0)
    with mode, values_shown():
        compiled(x, factor)
        compiled(x, factor)
    torch._dynamo.reset()
    assert len(compilations) == 1


OF_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "cond": lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)),
    "scan": lambda x: scan(lambda carry, a: (carry + a, carry * a), torch.zeros(2), x)[1],
    "map": lambda x: map_rows(lambda row: row.sin(), x),
}


@pytest.mark.parametrize("operator", OF_FUNCTIONS)
def test_operators_that_take_functions_have_a_result(mode: Any, operator: str) -> None:
    with mode:
        made = OF_FUNCTIONS[operator](mode.from_tensor(torch.ones(3, 2)))
    assert isinstance(made, FakeTensor)
    assert made.shape == (3, 2)


PRODUCTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "linear": lambda x: nn.functional.linear(x, torch.ones(4, 3)),
    "linear with a bias": lambda x: nn.functional.linear(x, torch.ones(4, 3), torch.ones(4)),
    "batches": lambda x: x.expand(2, 2, 3) @ torch.ones(2, 3, 4),
    "convolution": lambda x: nn.functional.conv1d(x, torch.ones(4, 2, 1)),
}


@pytest.mark.parametrize("multiply", PRODUCTS.values(), ids=PRODUCTS)
def test_a_product_of_two_types_fails_as_it_does_on_real_tensors(mode: Any, multiply: Any) -> None:
    values = torch.ones(2, 3, dtype=torch.int64)
    with pytest.raises(RuntimeError):
        multiply(values)
    known = mode.known(values)
    with mode:
        with pytest.raises(RuntimeError, match=r"have the same dtype, but got torch\.int64"):
            multiply(known)
        assert multiply(known.float()).dtype is torch.float32


@torch.compile
def _compiled_already(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + 1


def test_no_generated_kernel_gets_fake_tensors(mode: Any) -> None:
    """Their memory does not exist: the kernel would end the process."""
    with mode:
        made = _compiled_already(mode.from_tensor(torch.ones(3, 2)))
    assert isinstance(made, FakeTensor)
