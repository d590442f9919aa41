"""Results of a call survive the way through a pipe."""

from __future__ import annotations

import pytest
import torch

from compilewatch.worker.targets.numerics import compare, from_bytes, to_bytes

pytestmark = pytest.mark.torch

DTYPES = (torch.float32, torch.bfloat16, torch.complex64, torch.bool, torch.int64, torch.uint8)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(2, 3), (), (0, 4)], ids=str)
def test_a_tensor_keeps_its_type_shape_and_bits(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    given = (torch.rand(shape) * 5).to(dtype)
    found = from_bytes(to_bytes({"output": given}))["output"]
    assert (found.dtype, found.shape) == (given.dtype, given.shape)
    assert torch.equal(found, given)


def test_other_layouts_become_dense() -> None:
    given = torch.eye(3)
    views = {"sparse": given.to_sparse(), "turned": given.t(), "conjugate": (given * 1j).conj()}
    found = from_bytes(to_bytes(views))
    assert torch.equal(found["sparse"], given)
    assert torch.equal(found["turned"], given)
    assert torch.equal(found["conjugate"], (given * 1j).conj().resolve_conj())


def test_plain_values_stay_and_others_become_text() -> None:
    given = {"a": 1, "b": float("inf"), "c": None, "d": True, "e": "text", "f": 2**70, "g": 1j}
    found = from_bytes(to_bytes(given))
    assert {name: found[name] for name in "abcde"} == {name: given[name] for name in "abcde"}
    assert (found["f"], found["g"]) == (f"int: {2**70}", "complex: 1j")
    assert from_bytes(to_bytes({"nan": float("nan")}))["nan"] != 0


def test_a_difference_is_seen_behind_it() -> None:
    def sent(value: float) -> dict[str, object]:
        return from_bytes(to_bytes({"output": torch.full((2,), value), "count": 1}))

    assert compare(sent(1.0), sent(1.0), None).mismatches == ()
    assert compare(sent(1.0), sent(2.0), None).mismatches == ("output: off by 1",)
