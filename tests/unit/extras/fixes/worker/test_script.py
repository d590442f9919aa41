"""What writing a script needs: memory, and inputs of a second shape."""

import msgspec
import pytest
import torch

from compilewatch.extras.fixes import candidates
from compilewatch.extras.fixes.worker import script
from compilewatch.worker.subject import ExampleInputs

pytestmark = pytest.mark.torch


def given(*shapes: tuple[int, ...]) -> ExampleInputs:
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
    class Lengths(torch.nn.Module):
        calls = 0

        def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            if len(x) > most or (equal and len(lengths) != len(x)):
                raise ValueError("as many lengths as samples are needed")
            return x

    model, lengths = Lengths(), (2,) if equal else (1,)
    second = script.second_shape(model, given((2, 4), lengths), given((3, 4), lengths))
    assert [tuple(shape) for shape in script.shapes(second)] == expected
    assert model.calls == 0


def test_the_memory_of_a_model_is_returned_while_others_refer_to_it() -> None:
    numpy, model = pytest.importorskip("numpy"), torch.nn.BatchNorm1d(8)
    model.register_buffer("array", torch.from_numpy(numpy.ones(8)))  # numpy's memory stays
    weight, mean = model.weight, model.running_mean
    script.free(model)
    assert weight.untyped_storage().nbytes() == mean.untyped_storage().nbytes() == 0


def test_only_a_change_of_settings_alone_is_not_tried_in_eager_mode() -> None:
    dynamic = candidates.after_rejection("PendingUnbackedSymbolNotFound")
    assert dynamic is not None
    message = candidates.ignored_message("warnings.warn")
    assert "'settings': True" in script.of_subject((dynamic, message), train=False)
    # What it is called does not matter, what its lines do does.
    more = msgspec.structs.replace(message, lines=(*message.lines, "model.eval()"))
    assert "'settings': False" in script.of_subject((dynamic, more), train=False)
