"""The context managers that are printed, as they are pasted: what they leave to their caller."""

import gc
import threading
import weakref
from typing import Any, cast

import pytest
import torch

from compilewatch.extras.fixes.candidates import Place, as_python_value, given_as_numbers, usage
from compilewatch.extras.fixes.code import NAME, context_manager, imports
from compilewatch.extras.fixes.records import FixChange
from compilewatch.records import TensorSummary
from tests.factories import request

pytestmark = pytest.mark.torch


def manager(change: FixChange | None) -> Any:
    assert change is not None
    names: dict[str, Any] = {}
    exec("\n".join([*imports([change]), context_manager([change], "A fix.")]), names)
    return names[NAME]


class Scaled(torch.nn.Module):
    def forward(self, x: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
        return x * sizes.sum()


def test_arguments_given_as_numbers_stay_tensors_for_the_caller() -> None:
    sizes = TensorSummary(name="sizes", shape=(2,), dtype="int64")
    fix, model = manager(given_as_numbers(sizes)), cast(Any, Scaled())
    args, kwargs = (torch.ones(2),), {"sizes": torch.tensor([2, 3])}
    forwards = set()
    for _ in range(2):
        with fix(model, args, kwargs) as (given, named):
            forwards.add(model.forward.__func__)
            assert named["sizes"] == [2, 3]
            assert model(*given, **named).tolist() == [5, 5]
        assert torch.is_tensor(kwargs["sizes"])
    assert len(forwards) == 1  # another one would be compiled again
    assert "forward" not in vars(model)
    # A forward that is assigned later is called.
    model.forward = lambda x, sizes: x - sizes.sum()
    with fix(model, args, kwargs) as (given, named):
        assert model(*given, **named).tolist() == [-4, -4]
    # And the fix does not keep the model.
    kept = weakref.ref(model)
    del model
    gc.collect()
    assert kept() is None


class Cache:
    """Like a cache of keys: an object, of which PyTorch does not know what it holds."""

    def __init__(self) -> None:
        self.keys: list[Any] = []


def test_a_first_call_fills_a_copy_of_the_cache_of_the_caller() -> None:
    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor, cache: Cache) -> None:
            cache.keys.append(x.add_(1) + torch.rand(1))

    (change,) = usage((), Place(request=request(), source_of=lambda _: None))
    x, cache, before = torch.zeros(1), Cache(), torch.get_rng_state()
    with manager(change)(Net(), (x, cache), {}) as (given, _):
        assert given == (x, cache)
    assert (cache.keys, x.item()) == ([], 0)
    assert torch.equal(torch.get_rng_state(), before)


def test_what_a_call_writes_to_an_attribute_held_as_a_python_value_stays() -> None:
    np, fix = pytest.importorskip("numpy"), manager(as_python_value("step"))
    for first in (torch.tensor(2), np.int64(2)):
        model = torch.nn.Module()
        model.step = first
        with fix(model, (), {}):
            assert type(model.step) is int
        assert model.step is first
        with fix(model, (), {}):
            vars(model)["step"] += 1
        assert (type(model.step), model.step) == (type(first), 3)
        with fix(model, (), {}):
            vars(model)["step"] = None
        assert model.step is None
    for other in (torch.tensor(2.0, requires_grad=True), torch.ones(2), "a"):
        model.step = other
        with fix(model, (), {}):
            assert model.step is other  # a gradient and dimensions would be lost


def test_threads_take_turns() -> None:
    fix, entered = manager(as_python_value("step")), threading.Event()

    def enter() -> None:
        with fix(torch.nn.Module(), (), {}):
            entered.set()

    other = threading.Thread(target=enter)
    with fix(torch.nn.Module(), (), {}):
        other.start()
        assert not entered.wait(0.05)
    assert entered.wait(5)
    other.join()
