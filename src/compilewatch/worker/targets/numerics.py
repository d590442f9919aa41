"""Whether compiled code computes the same as eager mode, by the rule of PyTorch's benchmarks.

A float output passes if it is close to the output of eager mode (`TOLERANCES`). Otherwise both are
compared with the same model in float64: the root mean square error of compiled code may be
`_error_multiplier` times the error of eager mode. This is the rule of `torch._dynamo.utils.same`
(torch 2.13 to 2.15), with its constants: reordered arithmetic is not an error, and an unstable
model has a large error in eager mode, too. Of outputs that are not floats, only shape and dtype are
compared: an argmax over the logits of an untrained model changes with the last bit.

Results of a call as bytes, by which a fork returns them for comparison.

Only what a comparison looks at is kept: tensors are dense, and an object that is neither a tensor
nor a plain value is its text.
"""

import contextlib
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, TypeVar

import msgspec
import torch
from torch import Tensor

from compilewatch.records import Numerics

TOLERANCES: dict[torch.dtype, float] = {
    torch.float64: 1e-7,
    torch.float32: 1e-4,
    torch.float16: 1e-3,
    torch.bfloat16: 1e-2,
}
"""Both absolute and relative, by the dtype of eager's output; other dtypes use the loosest."""

SEED = 0
_LEAST_PRECISE = (torch.float16, torch.bfloat16)
_SMALL_OUTPUT = 1000
_NAMED_MISMATCHES = 8
_DEPTH_LIMIT = 12
_EAGER, _COMPILED = "eager mode", "compiled code"

Run = Callable[[], Any]
_Value = TypeVar("_Value")


def assess(
    eager: Run,
    compiled: Run,
    reference: Run | None,
    samples: Mapping[str, Sequence[Run]] | None = None,
) -> Numerics:
    """Compare the results of two functions; each is called at least once, from the same seed.

    `reference` runs the same model in float64, where the results differ; if it raises, eager mode
    is the reference. Eager mode runs twice first: if its results differ, the model is not
    deterministic and nothing counts against the compiler (`matches` is then the plain comparison,
    for information). A mismatch only counts if it occurs again with another seed. Then `samples`,
    which run each sample of a batch alone in eager mode, say which of the two results depends on
    the other samples: by what the paths of the results of that batch begin with.
    """
    first, by_compiler = seeded(eager), seeded(compiled)
    deterministic = identical(first, seeded(eager))
    comparison = compare(first, by_compiler, None)
    expected = _reference(reference) if comparison.mismatches else None
    if expected is not None:
        by_compiler = seeded(compiled)
        comparison = compare(first, by_compiler, expected)
    if comparison.mismatches and deterministic:
        again = _reference(reference, SEED + 1)
        comparison = compare(seeded(eager, SEED + 1), seeded(compiled, SEED + 1), again)
    judged = comparison.mismatches and deterministic
    changes = _changes_alone(samples or {}, first, by_compiler) if judged else {}
    return msgspec.structs.replace(
        comparison,
        deterministic=deterministic,
        reference="eager" if expected is None else "float64",
        mismatches=comparison.mismatches[:_NAMED_MISMATCHES],
        alone=_alone(changes),
        depends_on_batch=_EAGER in changes,
    )


def _changes_alone(
    samples: Mapping[str, Sequence[Run]], eager: Any, compiled: Any
) -> dict[str, float]:
    """Return by how much results of a batch differ from those of its samples, for each that does.

    None does if that cannot be told.
    """
    errors: dict[str, float] = {}
    for prefix, runs in samples.items():
        for number, run in enumerate(runs):
            single = _reference(run)
            if single is None:
                return {}
            rows_of_sample = {
                f"{prefix}{name}": value
                for name, value in leaves(single)
                if isinstance(value, Tensor) and value.shape[:1] == (1,)
            }
            for name, output in ((_EAGER, eager), (_COMPILED, compiled)):
                batch = {n: v for n, v in leaves(output) if n in rows_of_sample}
                rows = {n: v[number, None] for n, v in batch.items() if len(v) == len(runs)}
                # Of images by texts, the row of a sample has a value for each of the batch.
                rows = {n: v for n, v in rows.items() if v.shape == rows_of_sample[n].shape}
                comparison = compare({n: rows_of_sample[n] for n in rows}, rows, None)
                if comparison.mismatches:
                    errors[name] = max(errors.get(name, 0.0), comparison.max_abs_error or 0.0)
    return errors


def _alone(changes: Mapping[str, float]) -> str:
    if not changes:
        return ""
    changed = " and ".join(f"{name} changes by {error:.3g}" for name, error in changes.items())
    kept = "".join(f", {name} does not" for name in (_EAGER, _COMPILED) if name not in changes)
    return f"against each sample alone in eager mode, {changed}{kept}"


def seeded(run: Callable[[], _Value], seed: int = SEED) -> _Value:
    """Call with the seed set for every generator a model may use; numpy's only if installed."""
    random.seed(seed)
    with contextlib.suppress(ImportError):
        import numpy

        numpy.random.seed(seed)
    torch.manual_seed(seed)
    return run()


def compare(eager: Any, compiled: Any, reference: Any | None) -> Numerics:
    """Compare two outputs of a deterministic model, also with one in float64 of the same structure.

    `mismatches` of the result says all that differs beyond tolerance, and how.
    """
    ours, theirs = dict(leaves(eager)), dict(leaves(compiled))
    exact = dict(leaves(reference)) if reference is not None else {}
    mismatches = [f"{name}: only in eager" for name in ours.keys() - theirs.keys()]
    mismatches += [f"{name}: not in eager" for name in theirs.keys() - ours.keys()]
    absolute: list[float] = []
    relative: list[float] = []
    tolerances: list[float] = []
    for name, value in ours.items():
        if name not in theirs:
            continue
        difference = _difference(value, theirs[name], exact.get(name))
        if difference is not None:
            mismatches.append(f"{name}: {difference}")
        if _comparable(value, theirs[name]):
            tolerances.append(tolerance_of(value))
            error, scale = _largest_error(value, theirs[name])
            absolute.append(error)
            relative.append(error / scale if scale else error)
    tolerance = max(tolerances, default=None)
    return Numerics(
        deterministic=True,
        matches=not mismatches,
        mismatches=tuple(sorted(mismatches)),
        max_abs_error=max(absolute, default=None),
        max_rel_error=max(relative, default=None),
        atol=tolerance,
        rtol=tolerance,
    )


def identical(first: Any, second: Any) -> bool:
    """Whether all bits are equal; NaN equals NaN."""
    ours, theirs = dict(leaves(first)), dict(leaves(second))
    return ours.keys() == theirs.keys() and all(
        _same_bits(value, theirs[name]) for name, value in ours.items()
    )


def leaves(output: Any) -> Iterator[tuple[str, Any]]:
    """Yield each tensor and plain value of an output with its path: `logits`, `cache.layers[0]…`.

    Descends into containers, dataclasses and attributes of any other object, because return values
    of models (caches) are rarely registered with torch's pytree.
    """
    yield from _leaves("", output, frozenset())


def tolerance_of(value: Tensor) -> float:
    """Return the tolerance of an output; of a complex one, that of its real type."""
    dtype = value.dtype.to_real() if value.is_complex() else value.dtype
    return TOLERANCES.get(dtype, max(TOLERANCES.values()))


def _leaves(path: str, value: Any, above: frozenset[int]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Tensor | str | bytes | int | float | complex | Enum) or value is None:
        yield path or "output", value.detach() if isinstance(value, Tensor) else value
        return
    if id(value) in above or len(above) > _DEPTH_LIMIT:
        return
    inside = above | {id(value)}
    if isinstance(value, Mapping):
        for key, child in value.items():
            yield from _leaves(f"{path}.{key}" if path else str(key), child, inside)
    elif isinstance(value, list | tuple):
        for index, child in enumerate(value):
            yield from _leaves(f"{path}[{index}]", child, inside)
    elif hasattr(value, "__dict__") and not isinstance(value, type) and not callable(value):
        for name, child in vars(value).items():
            yield from _leaves(f"{path}.{name}" if path else name, child, inside)
    else:
        yield path or "output", type(value).__qualname__


def _difference(eager: Any, compiled: Any, exact: Any) -> str | None:
    if not isinstance(eager, Tensor) or not isinstance(compiled, Tensor):
        if type(eager) is not type(compiled):
            return f"{type(compiled).__name__}, eager gives {type(eager).__name__}"
        return None if _same_plain(eager, compiled) else f"{compiled!r}, eager gives {eager!r}"
    if eager.shape != compiled.shape:
        return f"shape {tuple(compiled.shape)}, eager gives {tuple(eager.shape)}"
    if eager.dtype != compiled.dtype:
        return f"{compiled.dtype}, eager gives {eager.dtype}"
    if not _comparable(eager, compiled) or _equal(eager, compiled):
        return None
    tolerance = tolerance_of(eager)
    ours, theirs = _double(eager), _double(compiled)
    if torch.allclose(theirs, ours, rtol=tolerance, atol=tolerance, equal_nan=True):
        return None
    if isinstance(exact, Tensor) and exact.shape == eager.shape:
        return _against_reference(eager, ours, theirs, _double(exact))
    return f"off by {(theirs - ours).abs().nan_to_num(posinf=math.inf).max().item():.3g}"


def _against_reference(eager: Tensor, ours: Tensor, theirs: Tensor, exact: Tensor) -> str | None:
    finite = ours.isfinite()
    if not torch.equal(finite, theirs.isfinite()):
        return "not finite where eager is, or the reverse"
    finite &= exact.isfinite()
    allowed = _error_multiplier(eager) * _rms(ours - exact, finite) + tolerance_of(eager) / 10
    error = _rms(theirs - exact, finite)
    return None if error <= allowed else f"off float64 by {error:.3g}, allowed {allowed:.3g}"


def _error_multiplier(eager: Tensor) -> float:
    """Return the allowed multiple of eager's error: noise weighs more in small outputs."""
    return 3.0 if eager.dtype in _LEAST_PRECISE or eager.numel() < _SMALL_OUTPUT else 2.0


def _rms(error: Tensor, where: Tensor) -> float:
    chosen = error[where]
    return chosen.square().mean().sqrt().item() if chosen.numel() else 0.0


def _largest_error(eager: Tensor, compiled: Tensor) -> tuple[float, float]:
    """Return the largest absolute error where both are finite, and eager's magnitude there."""
    if _equal(eager, compiled):
        return 0.0, 0.0
    ours, theirs = _double(eager), _double(compiled)
    finite = ours.isfinite() & theirs.isfinite()
    if not finite.any():
        return 0.0, 0.0
    return (theirs - ours)[finite].abs().max().item(), ours[finite].abs().max().item()


def _comparable(eager: Any, compiled: Any) -> bool:
    return (
        isinstance(eager, Tensor)
        and isinstance(compiled, Tensor)
        and eager.shape == compiled.shape
        and eager.dtype == compiled.dtype
        and (eager.is_floating_point() or eager.is_complex())
    )


def _equal(first: Tensor, second: Tensor) -> bool:
    """Whether dense floats are equal, without copies: of a large vocabulary, each has gigabytes."""
    dense = first.layout is torch.strided and second.layout is torch.strided
    return dense and first.is_floating_point() and torch.equal(first, second)


def _double(value: Tensor) -> Tensor:
    dense = value.to_dense() if value.layout is not torch.strided else value
    return (
        torch.view_as_real(dense.resolve_conj()).double() if dense.is_complex() else dense.double()
    )


def _same_bits(first: Any, second: Any) -> bool:
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        if first.shape != second.shape or first.dtype != second.dtype:
            return False
        if first.is_floating_point() or first.is_complex():
            if _equal(first, second):
                return True
            first, second = _double(first), _double(second)
            return bool(torch.allclose(first, second, rtol=0, atol=0, equal_nan=True))
        return bool(torch.equal(first, second))
    return type(first) is type(second) and _same_plain(first, second)


def _same_plain(first: Any, second: Any) -> bool:
    if isinstance(first, float):
        tolerance = TOLERANCES[torch.float32]
        both_nan = math.isnan(first) and math.isnan(second)
        return both_nan or math.isclose(first, second, rel_tol=tolerance, abs_tol=tolerance)
    return bool(first == second)


def _reference(run: Run | None, seed: int = SEED) -> Any | None:
    if run is None:
        return None
    try:
        return seeded(run, seed)
    except Exception:  # noqa: BLE001  (model code, in a dtype that may not be supported)
        return None


def to_bytes(results: Mapping[str, Any], known: Mapping[str, Any] | None = None) -> bytes:
    """Encode results by path; `from_bytes` is the inverse, with the same `known` ones.

    A fork has the results that its parent knows, and need not return what is equal to them.
    """
    known = known or {}
    return msgspec.msgpack.encode(
        {path: _encoded(value, known.get(path)) for path, value in results.items()}
    )


def from_bytes(data: bytes, known: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the results by path, with tensors on the CPU."""
    return {
        path: _decoded(*value) if value else (known or {})[path]
        for path, value in msgspec.msgpack.decode(data).items()
    }


def _encoded(value: Any, known: Any) -> tuple[Any, ...]:
    """A plain value or the text of another one; of a tensor, its type, shape and bytes.

    A tensor that is equal to the known one is empty.
    """
    if isinstance(value, Tensor):
        dense = value.detach().cpu()
        if isinstance(known, Tensor) and dense.dtype is known.dtype and _equal(dense, known):
            return ()
        if dense.layout is not torch.strided:
            dense = dense.to_dense()
        dense = dense.resolve_conj().resolve_neg().contiguous()
        parts = torch.view_as_real(dense) if dense.is_complex() else dense
        data = parts.reshape(-1).view(torch.uint8).numpy().tobytes() if dense.numel() else b""
        return str(dense.dtype).removeprefix("torch."), tuple(dense.shape), data
    is_small = not isinstance(value, int) or -(2**63) <= value < 2**63
    if value is None or (type(value) in (str, bool, int, float) and is_small):
        return (value,)
    return (f"{type(value).__qualname__}: {value!r}",)


def _decoded(value: Any, shape: Sequence[int] = (), data: bytes | None = None) -> Any:
    if data is None:
        return value
    kind: torch.dtype = getattr(torch, value)
    if not data:
        return torch.empty(tuple(shape), dtype=kind)
    return torch.frombuffer(bytearray(data), dtype=kind).reshape(tuple(shape))
