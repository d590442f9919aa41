"""What writing a script needs: memory, and inputs of a second shape."""

from typing import Any

import pytest

pytestmark = pytest.mark.torch


def made(*shapes: tuple[int, ...]) -> Any:
    import torch

    from compilewatch.worker.subject import ExampleInputs

    return ExampleInputs(strategy="rules", args=tuple(map(torch.zeros, shapes)), kwargs={})


@pytest.mark.parametrize(
    ("most", "equal", "expected"),
    [
        (9, False, [(3, 4), (1,)]),  # what the rules make
        (9, True, [(3, 4), (3,)]),  # they leave an argument as it is: one more sample of both
        (2, True, [(2, 4), (2,)]),  # no more samples
    ],
)
def test_the_second_shape_is_one_that_the_model_takes(
    most: int, equal: bool, expected: list[tuple[int, ...]]
) -> None:
    import torch
    from torch import nn

    from compilewatch.extras.fixes.worker.script import second_shape, shapes

    class Lengths(nn.Module):
        calls = 0

        def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            if len(x) > most or (equal and len(lengths) != len(x)):
                raise ValueError("as many lengths as samples are needed")
            return x

    model = Lengths()
    first = made((2, 4), (2,) if equal else (1,))
    longer = made((3, 4), (2,) if equal else (1,))
    assert [tuple(s) for s in shapes(second_shape(model, first, longer))] == expected
    assert model.calls == 0


def test_the_memory_of_a_model_is_returned_while_others_refer_to_it() -> None:
    import numpy
    import torch

    from compilewatch.extras.fixes.worker.script import free

    model = torch.nn.BatchNorm1d(8)
    model.register_buffer("array", torch.from_numpy(numpy.ones(8)))  # numpy's memory stays
    weight, mean = model.weight, model.running_mean
    free(model)
    assert weight.untyped_storage().nbytes() == mean.untyped_storage().nbytes() == 0


def test_only_a_change_of_settings_alone_is_not_tried_in_eager_mode() -> None:
    import msgspec

    from compilewatch.extras.fixes.candidates import after_rejection, ignored_message
    from compilewatch.extras.fixes.worker.script import of_subject

    dynamic = after_rejection("PendingUnbackedSymbolNotFound")
    assert dynamic is not None
    message = ignored_message("warnings.warn")
    assert "'settings': True" in of_subject((dynamic, message), train=False)
    # What it is called does not matter, what its lines do does.
    more = msgspec.structs.replace(message, lines=(*message.lines, "model.eval()"))
    assert "'settings': False" in of_subject((dynamic, more), train=False)
