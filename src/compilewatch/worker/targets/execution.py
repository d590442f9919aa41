"""Calls of a subject in its mode, and whether the results of compiled ones are those of eager mode.

The target `numerics` is at the top; other targets that run code use its parts.
"""

import copy
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch._dynamo import lookup_backend
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from compilewatch.records import Mode, Numerics, Phase, Status, TargetOutcome, Tier
from compilewatch.worker.example_inputs.sizes import BATCH, SEQUENCE, inputs_of, sizes_of
from compilewatch.worker.model.construct import preserved
from compilewatch.worker.subject import ExampleInputs, Subject
from compilewatch.worker.targets import CompileTarget, numerics
from compilewatch.worker.targets.dynamo.capture import call_once
from compilewatch.worker.targets.dynamo.failures import failed

Call = Callable[..., Any]
CompileModel = Callable[[Subject], Call]
Results = Callable[[Subject], dict[str, Any]]

_BACKENDS = ("eager", "aot_eager")
_LAYER_SECONDS = 60.0
_MOST_SAMPLES = 8


class NumericsTarget(CompileTarget):
    """Do the backends `eager` and `aot_eager` compute what eager mode computes, at two sizes?

    One compiled model is called with its example inputs, with those of another size, and with the
    first ones again: these run in the graph for the other size, where its guards let them. Another
    backend of `torch.compile` can be named. Modes eval and train, in which gradients are compared.

    It is no part of the target dynamo: values need real tensors, hence a model of reduced size, and
    graph breaks are counted on the full one. So either verdict has a status, times and failures of
    its own.
    """

    name = "numerics"
    tiers = (Tier.REAL,)

    def run(self, subject: Subject) -> TargetOutcome:
        """Compile with each backend until one differs, and name the layer where that begins."""
        subject.enter(Phase.COMPILE)
        subject, sizes = _with_second_size(subject)
        named = subject.request.target.backend
        known: dict[str, Any] = {}
        results = {} if named else _results_by_backend(subject, known)
        for backend in (named,) if named else _BACKENDS:
            compile_model = partial(_compiled, backend)
            try:
                comparison = compared(subject, compile_model, results.get(backend, b""), known)
            except Exception as error:  # noqa: BLE001  (the edge to the compiler)
                outcome = TargetOutcome(status=Status.ERROR)
                return failed(outcome, error, (), f"with the backend {backend}: ")
            if comparison.differs:
                break
        subject.enter(Phase.COMPARE)
        comparison = located(subject, compile_model, comparison)
        comparison = msgspec.structs.replace(comparison, sizes=sizes, backend=backend)
        only = "" if sizes[1:] else "only one size: eager mode takes no other batch or sequence"
        remark = comparison.remark or "as eager mode"
        by_backend = f"the backend {backend} {remark}" if comparison.differs else remark
        return TargetOutcome(
            status=Status.MISMATCH if comparison.differs else Status.PASS,
            detail="; ".join(filter(None, (by_backend, comparison.calls, only))),
            numerics=comparison,
        )


def _compiled(backend: str, subject: Subject) -> Call:
    compiled: Call = torch.compile(
        subject.module, backend=backend, dynamic=subject.request.target.dynamic
    )
    return compiled


def _results_by_backend(subject: Subject, known: dict[str, Any]) -> dict[str, bytes]:
    """Return the encoded results of the model with each backend, for which Dynamo traces it once.

    Those of eager mode become `known` first. Empty if one of them fails: compiled by itself, each
    says whether it is the one.
    """

    def results(inside: Subject) -> dict[str, bytes]:
        backend = ""

        def compile_graph(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Call:
            compiled = {name: lookup_backend(name)(graph, inputs) for name in _BACKENDS}
            return lambda *args: compiled[backend](*args)

        inside.forget()
        call = torch.compile(
            inside.module, backend=compile_graph, dynamic=subject.request.target.dynamic
        )
        by_backend: dict[str, bytes] = {}
        for backend in _BACKENDS:
            by_backend[backend] = numerics.seeded(
                lambda: _encoded(inside, lambda one: observed(one, call), known)
            )
        return by_backend

    try:
        known |= numerics.seeded(lambda: _results(subject, subject, _in_eager_mode, known))
        return subject.in_fork(results, dict[str, bytes])
    except Exception:  # noqa: BLE001  (the edge to the compiler)
        return {}


def _with_second_size(subject: Subject) -> tuple[Subject, tuple[dict[str, int], ...]]:
    """Return the subject with calls of another size and of the first one again, and their sizes.

    The other size is the first that eager mode takes: of batch and sequence, or of one of them.
    """
    own = _named_sizes(subject)
    other = {name: size + 2 if name == BATCH else size // 2 + 1 for name, size in own.items()}
    choices = [other, *({name: size} for name, size in other.items() if len(other) > 1)]

    def accepted(inside: Subject) -> dict[str, int]:
        for sizes in filter(None, choices):
            try:
                resized = replace(inside, inputs=inputs_of(inside, sizes))
                if _named_sizes(resized) == own:
                    continue
                with preserved(inside.module):
                    call_once(resized, inside.module)
            except Exception:  # noqa: BLE001  (model code, with inputs that may not fit)
                continue
            return sizes
        return {}

    sizes = subject.in_fork(accepted, dict[str, int])
    if not sizes:
        return subject, (own,)
    inputs = inputs_of(subject, sizes)
    assert subject.rebuilt is not None
    # Rules for inputs may have called the module.
    fresh = replace(subject, module=subject.rebuilt(), later=(inputs, subject.inputs))
    return fresh, (own, _named_sizes(replace(subject, inputs=inputs)), own)


def _named_sizes(subject: Subject) -> dict[str, int]:
    return {name: size for name, size in sizes_of(subject).items() if name in (BATCH, SEQUENCE)}


def enlarged(subject: Subject) -> Subject | None:
    """Return the subject with one more row in every batch dimension.

    None if the inputs name no batch dimension, or if eager mode rejects the larger ones.
    """
    kwargs = dict(subject.inputs.kwargs)
    changed = False
    for name, dims in subject.inputs.dynamic_shapes.items():
        for dim in [dim for dim, label in dims.items() if label == BATCH and name in kwargs]:
            changed = True
            kwargs[name] = tree_map_only(
                torch.Tensor,
                lambda t, dim=dim: torch.cat([t, t.narrow(dim, t.shape[dim] - 1, 1)], dim),
                kwargs[name],
            )
    if not changed:
        return None
    larger = replace(subject, inputs=replace(subject.inputs, kwargs=kwargs))
    with preserved(subject.module):
        try:
            call_once(larger, subject.module)
        except Exception:  # noqa: BLE001  (model code, with inputs that may not fit)
            return None
    return larger


def observed(subject: Subject, call: Call) -> dict[str, Any]:
    """Return the results of one call by path: outputs, and gradients in train mode.

    `call` runs the subject's module, compiled or not; the module is restored afterwards. Inputs and
    outputs are copied, because a model may write to its inputs and may return its own buffers.
    """
    with preserved(subject.module):
        subject.module.zero_grad(set_to_none=True)
        inputs = mapped(subject.inputs, torch.clone)
        output = call_once(replace(subject, inputs=inputs), call)
        results = comparable(subject, output)
        return {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in results.items()}


def samples(subject: Subject) -> list[Subject]:
    """Return the subject with each sample of its batch alone; none where it has no small batch.

    In train mode samples belong together: their gradients add up, and statistics are of a batch.
    """
    leaves = tree_leaves((subject.inputs.args, subject.inputs.kwargs))
    sizes = [len(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim()]
    count = sizes[0] if sizes else 0
    if subject.request.target.mode is Mode.TRAIN or not 1 < count <= _MOST_SAMPLES:
        return []

    def only(number: int, value: torch.Tensor) -> torch.Tensor:
        return value[number, None] if value.shape[:1] == (count,) else value

    return [
        replace(subject, inputs=mapped(subject.inputs, partial(only, number)))
        for number in range(count)
    ]


def compared(
    subject: Subject,
    compile_model: CompileModel,
    first: bytes = b"",
    known: dict[str, Any] | None = None,
) -> Numerics:
    """Compare the results of all calls with eager mode; each run has a fork, as a model's first.

    `compile_model` compiles the model of a subject; `first` are the encoded results of a run of it
    that has taken place, and `known` those of eager mode. What the compiler or the model raises
    propagates.
    """
    kept = [first] if first else []
    known = {} if known is None else known

    def run(call: Results, inside: Subject = subject) -> dict[str, Any]:
        results = _results(subject, inside, call, known)
        known.update({} if known else results)
        return results

    def compiled() -> dict[str, Any]:
        if kept:
            return numerics.from_bytes(kept.pop(), known)
        return run(lambda inside: observed(inside, compile_model(inside)))

    alone = {
        prefix: [partial(run, _in_eager_mode, single) for single in samples(one)]
        for prefix, one in _calls(subject).items()
    }
    eager, in_float64 = partial(run, _in_eager_mode), partial(run, observed_in_float64)
    return numerics.assess(eager, compiled, in_float64, alone)


def _in_eager_mode(subject: Subject) -> dict[str, Any]:
    return observed(subject, subject.module)


def _results(
    subject: Subject, inside: Subject, call: Results, known: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the results of calls with the inputs of `inside`, in a fork that knows some."""

    def encoded(forked: Subject) -> bytes:
        forked.forget()
        return _encoded(replace(forked, inputs=inside.inputs, later=inside.later), call, known)

    return numerics.from_bytes(subject.in_fork(encoded, bytes), known)


def _encoded(subject: Subject, call: Results, known: Mapping[str, Any]) -> bytes:
    calls = _calls(subject).items()
    results = {f"{prefix}{name}": v for prefix, one in calls for name, v in call(one).items()}
    return numerics.to_bytes(results, known)


def _calls(subject: Subject) -> dict[str, Subject]:
    """The subject of each call, by what the paths of its results begin with.

    Each call starts from the state in which the model was given.
    """
    if subject.later is None:
        return {"": subject}
    return {
        f"call {number}: ": replace(subject, inputs=inputs, later=None)
        for number, inputs in enumerate((subject.inputs, *subject.later), start=1)
    }


def located(subject: Subject, compile_model: CompileModel, comparison: Numerics) -> Numerics:
    """Return a comparison with the first layer that differs.

    The modules that the model calls are compiled one by one, in the order of their calls and with
    the inputs that they have in eager mode; then those that the first one calls that differs, and
    so on. A difference that adds up over layers is in none of them. Where eager mode depends on the
    other samples of the batch, no layer is to blame.
    """
    if not comparison.differs or comparison.depends_on_batch:
        return comparison
    try:
        end = time.monotonic() + _LAYER_SECONDS
        layer = subject.in_fork(partial(_first_layer, compile_model, end, ()), str)
    except Exception:  # noqa: BLE001  (model code, with inputs that may not be possible to copy)
        layer = ""
    return msgspec.structs.replace(comparison, first_layer=layer)


def _first_layer(
    compile_model: CompileModel, end: float, path: tuple[str, ...], subject: Subject
) -> str:
    for name, part in _parts(subject).items():
        if time.monotonic() > end:
            break
        try:
            comparison = compared(part, compile_model)
        except Exception:  # noqa: BLE001  (one that does not compile alone)
            continue
        if comparison.differs:
            place = (*path, name)
            error, tolerance = comparison.max_abs_error or 0.0, comparison.atol or 0.0
            layer = f"{'.'.join(place)} ({type(part.module).__name__})"
            inner = _first_layer(compile_model, end, place, part)
            return inner or f"{layer}: off by {error:.3g}, tolerance {tolerance:g}"
    return ""


def _parts(subject: Subject) -> dict[str, Subject]:
    """The modules that a model calls itself, with the inputs of the first call in each call of it.

    In the order of their calls.
    """
    inputs: dict[str, list[ExampleInputs]] = {}
    above: list[str] = []
    called: set[str] = set()

    def enter(name: str, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not above and name not in called:
            given = ExampleInputs(strategy="recorded", args=args, kwargs=kwargs)
            # Copies, because the module may write to them, as it does to a cache.
            copied = copy.deepcopy(mapped(given, Tensor.detach))
            inputs.setdefault(name, []).append(copied)
            called.add(name)
        above.append(name)

    hooks = [
        hook
        for name, module in subject.module.named_modules()
        if name
        for hook in (
            module.register_forward_pre_hook(partial(enter, name), with_kwargs=True),
            module.register_forward_hook(lambda *_: above.pop() and None, always_call=True),
        )
    ]
    try:
        for one in _calls(subject).values():
            called.clear()
            numerics.seeded(partial(observed, one, one.module))
    finally:
        for hook in hooks:
            hook.remove()
    return {
        name: replace(
            subject,
            module=subject.module.get_submodule(name),
            inputs=first,
            later=tuple(later) or None,
            rebuilt=None,
        )
        for name, (first, *later) in inputs.items()
    }


def comparable(subject: Subject, output: Any) -> dict[str, Any]:
    """Return outputs by path, and gradients by parameter if there are any.

    No gradient is the same as zeros, which compiled code has in its place: so compares PyTorch
    (`torch._dynamo.testing.collect_results`).
    """
    results = dict(numerics.leaves(output))
    parameters = {name: one for name, one in subject.module.named_parameters() if one.requires_grad}
    if any(parameter.grad is not None for parameter in parameters.values()):
        for name, parameter in parameters.items():
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            results[f"gradient of {name}"] = gradient
    return results


def observed_in_float64(subject: Subject) -> dict[str, Any]:
    """Return the results of the subject in float64 (also its inputs), run in eager mode."""
    module = copy.deepcopy(subject.module).double()
    inputs = mapped(subject.inputs, lambda t: t.double() if t.is_floating_point() else t)
    return observed(replace(subject, module=module, inputs=inputs), module)


class Flat(nn.Module):  # type: ignore[misc]  # torch is not followed
    """A model as a function of tensors only: tensors in, in order; a tuple of tensors out.

    All other arguments are constants. Each call sets `outputs` to the paths of its results as in
    `numerics.leaves`.
    """

    def __init__(self, subject: Subject, outputs: list[str]) -> None:
        super().__init__()
        self.module = subject.module
        leaves, self._spec = tree_flatten((subject.inputs.args, subject.inputs.kwargs))
        self._constants = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self._places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

        def name_outputs(names: Iterable[str]) -> None:
            outputs[:] = names  # not an attribute: export rejects a module whose attributes change

        self._name_outputs = name_outputs

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        leaves: list[Any] = list(self._constants)
        for place, tensor in zip(self._places, tensors, strict=True):
            leaves[place] = tensor
        args, kwargs = tree_unflatten(leaves, self._spec)
        results = numerics.leaves(self.module(*args, **kwargs))
        named = {name: value for name, value in results if isinstance(value, Tensor)}
        self._name_outputs(named)
        return tuple(named.values())

    def tensors(self, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        """Return the arguments of the model as arguments of `forward`."""
        leaves, _ = tree_flatten((args, kwargs))
        return tuple(leaves[place] for place in self._places)


def mapped(inputs: ExampleInputs, change: Callable[[torch.Tensor], torch.Tensor]) -> ExampleInputs:
    args, kwargs = tree_map_only(torch.Tensor, change, (inputs.args, inputs.kwargs))
    return replace(inputs, args=args, kwargs=kwargs)
