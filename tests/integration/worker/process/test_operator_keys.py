"""What a fake mode computed serves every other mode for the same inputs, and no other inputs."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from compilewatch.worker.process.shortcuts import share_operators

pytestmark = pytest.mark.torch

Make = Callable[[], torch.Tensor]


@pytest.fixture(autouse=True)
def shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeTensorMode, "_cache_key", FakeTensorMode._cache_key)
    share_operators()
    FakeTensorMode.cache_clear()


def computed(mode: FakeTensorMode, call: Callable[[torch.Tensor], object], make: Make) -> int:
    """How many operators had to be computed for a call."""
    x = mode.from_tensor(make(), static_shapes=True)
    before = FakeTensorMode.cache_misses
    with mode:
        call(x)
    return int(FakeTensorMode.cache_misses - before)


def add(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def matrix() -> torch.Tensor:
    return torch.ones(3, 4)


def test_modes_with_other_settings_share_an_operator() -> None:
    modes = [
        FakeTensorMode(),
        FakeTensorMode(shape_env=ShapeEnv()),
        FakeTensorMode(shape_env=ShapeEnv(allow_scalar_outputs=True)),
    ]
    assert [computed(mode, add, matrix) for mode in modes] == [1, 0, 0]


@pytest.mark.parametrize(
    "other",
    [
        lambda: torch.ones(3, 5),
        lambda: torch.ones(4, 3).t(),
        lambda: torch.ones(3, 4, dtype=torch.float64),
        lambda: torch.ones(3, 4, requires_grad=True),
        lambda: torch.ones(4, 4)[1:],
    ],
    ids=["size", "stride", "type", "gradient", "offset"],
)
def test_other_inputs_and_numbers_of_another_type_are_computed_anew(other: Make) -> None:
    mode = FakeTensorMode()
    assert [computed(mode, add, make) for make in (matrix, other, other)] == [1, 1, 0]
    mode, integers = FakeTensorMode(), lambda: torch.ones(3, dtype=torch.long)
    assert [computed(mode, partial(torch.add, other=n), integers) for n in (1, 1.0)] == [1, 1]


def test_what_symbols_gave_is_only_looked_up_where_they_occur_again() -> None:
    results = []
    for _ in range(2):
        mode = FakeTensorMode(shape_env=ShapeEnv())
        sizes = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.STATIC])
        x = mode.from_tensor(matrix(), symbolic_context=sizes)
        with mode:
            results.append(x + 1)
            before, hits = [str(torch.cat([x, x]).shape), FakeTensorMode.cache_hits]
            assert str(torch.cat([x, x]).shape) == before
            assert FakeTensorMode.cache_hits > hits
        assert mode.shape_env.fake_tensor_cache
    assert FakeTensorMode.cache == {}
    first, second = (result.shape[0].node for result in results)
    assert first.shape_env is not second.shape_env


def test_a_result_that_depends_on_data_needs_its_own_settings() -> None:
    with pytest.raises(DynamicOutputShapeException):
        computed(FakeTensorMode(), torch.nonzero, matrix)
    mode = FakeTensorMode(shape_env=ShapeEnv(allow_dynamic_output_shape_ops=True))
    with mode:
        assert isinstance(torch.nonzero(mode.from_tensor(matrix())).shape[0], torch.SymInt)
    with pytest.raises(DynamicOutputShapeException):
        computed(FakeTensorMode(), torch.nonzero, matrix)
