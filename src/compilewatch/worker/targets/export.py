"""The export target: does `torch.export` accept the model, non-strict and strict; if not, why?

The verdict is that of the non-strict variant, PyTorch's default, which runs the model's Python on
fake tensors and records the operators. The strict variant uses Dynamo and rejects graph breaks.
Each variant accepts models that the other rejects, so both results are kept.

Containers of Transformers (caches) are first registered with torch's pytree, by Transformers' own
function, as torch asks users to do for their output types. Transformers' patches of model code for
export are not applied, because they would hide what this target measures.
"""

import contextlib
import inspect
import json
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from traceback import FrameSummary
from typing import Any

import msgspec
import torch
from torch import nn
from torch._logging.structured import INTERN_TABLE
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import Dim, ExportedProgram, ShapesCollection
from torch.fx.experimental.symbolic_shapes import is_concrete_int
from torch.utils._pytree import tree_flatten_with_path, tree_leaves

from compilewatch import records
from compilewatch.contract.failures import one_line
from compilewatch.errors import UsageError
from compilewatch.worker import targets
from compilewatch.worker.model import replaced
from compilewatch.worker.subject import Subject
from compilewatch.worker.targets.dynamo.failures import Codes, compiler_failure
from compilewatch.worker.targets.dynamo.graph_breaks import place_of, user_stack

_ANSI = re.compile(r"\x1b\[[0-9;]*m")


@contextlib.contextmanager
def _trace_in_scratch() -> Iterator[None]:
    """Make torch write its unused trace into a folder that is deleted."""
    with (
        tempfile.TemporaryDirectory(prefix="draft_export_") as folder,
        replaced(tempfile, "tempdir", folder),
    ):
        yield


def _failure(failure: Any, files: dict[int, str]) -> records.DraftFailure:
    """Convert a `FailureReport` of torch/export/_draft_export.py (2.13 to 2.15)."""
    data: dict[str, Any] = failure.data
    stack = user_stack(
        FrameSummary(files[at["filename"]], at["line"], at["name"], lookup_line=False)
        for at in data.get("user_stack", ())
        if at["filename"] in files
    )
    place = place_of(stack) if stack else None
    return records.DraftFailure(
        kind=str(failure.failure_type).lower(),
        what=str(data.get("expr") or data.get("op") or ""),
        occurrences=data.get("occurrences", 1),
        file=place.file if place else None,
        line=place.line if place else None,
        function=place.function if place else None,
    )


OPS_ARTIFACT = "export_ops.json"
DRAFT_ARTIFACT = "draft_export.txt"

VARIANTS: dict[str | None, tuple[bool, ...]] = {
    None: (False, True),
    "non_strict": (False,),
    "strict": (True,),
}
"""The target's `backend` -> the variants (`strict=…`) to run; the first decides the verdict."""

CODES: Codes = (
    (
        "unregistered_container",
        r"in output, which is not a known type|unrecognized type .* at output"
        r"|Unsupported input type|register a pytree",
    ),
    ("attribute_assigned", r"assigned during export|attribute.* (was|were) (assigned|mutated)"),
    # `module.to(…)` in forward replaces parameters, which torch forbids for traced tensors.
    ("module_converted", r"_apply\(\): Couldn't swap"),
)
"""Causes that are specific to export; others have the codes of Dynamo's graph breaks."""

_VALUE_CODES = frozenset(
    {
        "data_dependent_guard",
        "data_dependent_output",
        "dynamic_output_shape",
        "unbacked_symint",
        "fake_tensor",
    }
)
"""Failures that real tensors may avoid: a constant's value is known, a fake one's is not."""

_SYMBOL_CODES = frozenset({"data_dependent_guard", "unbacked_symint"})
"""Failures of symbols that `torch.export` made for values: it makes fake tensors of real inputs,
parameters and buffers too, so that only a constant of the module could have had a value."""


_Dimensions = list[tuple[int, str, tuple[int, ...]]]
"""The dynamic dimensions: index of the leaf, its name, and its dimensions."""


class ExportTarget(targets.CompileTarget):
    """`torch.export.export`. Modes eval (under `no_grad`) and train (grad mode, no backward)."""

    name = "export"
    tiers = (records.Tier.FAKE, records.Tier.REAL)

    def run(self, subject: Subject) -> records.TargetOutcome:
        """Export in the variants that the target's backend names (`VARIANTS`).

        Raises FakeUnsupportedError if fake tensors may have caused a failure, UsageError for an
        unknown backend; out-of-memory errors propagate.
        """
        backend = subject.request.target.backend
        if backend not in VARIANTS:
            known = ", ".join(name for name in VARIANTS if name)
            raise UsageError(f"export has no backend {backend!r}; known: {known}")
        subject.enter(records.Phase.COMPILE)
        register_containers(subject.module)
        first, *others = VARIANTS[backend]
        keep = subject.request.keep_artifacts
        verdict = subject.in_fork(partial(_export, strict=first, keep=keep), records.TargetOutcome)
        if verdict.error is not None:
            _blame_fake_tensors(subject, verdict.error)
        detail = _detail_of(verdict)
        subject.enter(records.Phase.COMPARE)
        if others:
            outcome = subject.in_fork(partial(_export, strict=True), records.TargetOutcome)
            other = _detail_of(outcome)
            shapes = detail if verdict.error is None else other
            detail = msgspec.structs.replace(
                shapes, non_strict=detail.non_strict, strict=other.strict
            )
        artifacts = verdict.artifacts
        if verdict.error is not None:
            draft = _draft(subject, first)
            detail = msgspec.structs.replace(detail, draft=draft)
            artifacts = (DRAFT_ARTIFACT,) if keep and draft is not None and draft.exported else ()
            subject.enter(records.Phase.COMPILE)  # the phase of the reported error
        text = "; ".join((verdict.detail, *_remarks(detail)))
        return msgspec.structs.replace(verdict, detail=text, details=detail, artifacts=artifacts)


def register_containers(module: nn.Module) -> None:
    """Register the caches of a Transformers model with torch's pytree, if possible.

    `transformers.exporters` does so since 5.x; before, a cache in the outputs is a failure.
    """
    if "transformers" not in sys.modules:
        return
    from transformers import PreTrainedModel

    with contextlib.suppress(ImportError):
        from transformers.exporters.exporter_dynamo import register_cache_pytrees_for_model

        if isinstance(module, PreTrainedModel):
            register_cache_pytrees_for_model(module)


def operators(program: ExportedProgram) -> dict[str, int]:
    """Count operators (`aten.linear.default`), most frequent first, also in nested graphs."""
    counts: Counter[str] = Counter()
    for graph in program.graph_module.modules():
        if isinstance(graph, torch.fx.GraphModule):
            for node in graph.graph.nodes:
                if isinstance(node.target, OpOverload | HigherOrderOperator):
                    counts[str(node.target)] += 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _export(subject: Subject, *, strict: bool, keep: bool = False) -> records.TargetOutcome:
    """Export in one variant; the details say nothing of the other. `keep` writes the operators."""
    dimensions, shapes = _dynamism(subject)
    detail, way = records.ExportDetail(), "strict" if strict else "non_strict"
    started = time.perf_counter()
    try:
        with subject.gradients():
            program = torch.export.export(
                subject.module,
                subject.inputs.args,
                subject.inputs.kwargs,
                dynamic_shapes=shapes,
                strict=strict,
            )
    except Exception as error:  # noqa: BLE001  (the edge to the compiler and to model code)
        record = compiler_failure(error, CODES)
        variant = records.ExportVariant(
            exported=False,
            duration_seconds=time.perf_counter() - started,
            code=record.code,
            reason=record.message,
        )
        return records.TargetOutcome(
            status=records.Status.ERROR,
            detail=one_line(error),
            details=msgspec.structs.replace(detail, **{way: variant}),
            error=record,
        )
    duration, ops = time.perf_counter() - started, operators(program)
    total = sum(ops.values())
    variant = records.ExportVariant(exported=True, duration_seconds=duration, ops=total)
    dynamic, constant = _stayed(program, dimensions)
    if keep:
        text = json.dumps({"dialect": program.dialect, "ops": ops}, indent=1) + "\n"
        (subject.artifacts / OPS_ARTIFACT).write_text(text, encoding="utf-8")
    return records.TargetOutcome(
        status=records.Status.PASS,
        detail=f"{total} ops",
        graphs=1,
        ops=total,
        details=msgspec.structs.replace(
            detail,
            **{way: variant},
            dynamic_dimensions=dynamic,
            specialized_dimensions=constant,
        ),
        artifacts=(OPS_ARTIFACT,) if keep else (),
    )


def _detail_of(outcome: records.TargetOutcome) -> records.ExportDetail:
    assert isinstance(outcome.details, records.ExportDetail)
    return outcome.details


def _draft(subject: Subject, strict: bool) -> records.DraftExport | None:
    """Run draft export, with example values, on a model that export rejected.

    It needs values: None on fake tensors.
    """
    if subject.fake_mode is not None:
        return None
    _, shapes = _dynamism(subject)
    try:
        with subject.gradients(), _trace_in_scratch():
            program = torch.export.draft_export(
                subject.module,
                subject.inputs.args,
                subject.inputs.kwargs,
                dynamic_shapes=shapes,
                strict=strict,
            )
        report: Any = program._report
        # Torch announces the number of a file once per process, so only to the first report.
        report.str_to_filename |= {number: name for name, number in INTERN_TABLE.items()}
        rejected = tuple(_failure(failure, report.str_to_filename) for failure in report.failures)
        text = _ANSI.sub("", str(report)).strip() + "\n"
    except Exception as error:  # noqa: BLE001  (the edge to the compiler and to model code)
        compiler_failure(error, CODES)
        return records.DraftExport(exported=False, reason=one_line(error))
    if subject.request.keep_artifacts:
        (subject.artifacts / DRAFT_ARTIFACT).write_text(text, encoding="utf-8")
    return records.DraftExport(exported=True, failures=rejected)


def _blame_fake_tensors(subject: Subject, error: records.ErrorRecord) -> None:
    """Raise FakeUnsupportedError if real tensors may work and are allowed."""
    targets.check_device_not_needed(subject, error.message)
    if subject.fake_mode is None or subject.request.tier is records.Tier.FAKE:
        return
    on_device = subject.request.device is not None
    if on_device and error.code in _SYMBOL_CODES and all(_constants_known(subject.module)):
        return
    if error.code in _VALUE_CODES:
        raise targets.FakeUnsupportedError(f"{error.code}: {error.message.splitlines()[0][:200]}")


def _constants_known(module: nn.Module) -> Iterator[bool]:
    """Yield, of each fake tensor in a plain attribute of a module, whether it has a value."""
    for submodule in module.modules():
        registered = {"_parameters", "_buffers", "_modules"}
        own = {name: v for name, v in vars(submodule).items() if name not in registered}
        for leaf in tree_leaves(own):
            if isinstance(leaf, FakeTensor) and not isinstance(leaf, nn.Parameter):
                yield leaf.constant is not None


def _dynamism(subject: Subject) -> tuple[_Dimensions, ShapesCollection | None]:
    """Use `Dim.AUTO` on the dimensions that the inputs name, or on all if they name none."""
    if not subject.request.target.dynamic:
        return [], None
    named = subject.inputs.dynamic_shapes
    parameters = tuple(inspect.signature(subject.module.forward).parameters)
    requested: _Dimensions = []
    shapes = ShapesCollection()
    leaves, _ = tree_flatten_with_path((subject.inputs.args, subject.inputs.kwargs))
    for index, (path, leaf) in enumerate(leaves):
        argument = path[1].idx if hasattr(path[1], "idx") else path[1].key
        name = parameters[argument] if isinstance(argument, int) else str(argument)
        if not isinstance(leaf, torch.Tensor):
            continue
        dims = named.get(name, ()) if named else range(leaf.dim())
        dimensions = tuple(dim for dim in dims if dim < leaf.dim())
        if dimensions:
            shapes[leaf] = dict.fromkeys(dimensions, Dim.AUTO)
            nested = "".join(str(key) for key in path[2:])
            requested.append((index, name + nested, dimensions))
    return requested, shapes


def _stayed(
    program: ExportedProgram, requested: _Dimensions
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return which requested dimensions stayed symbolic, and which became constants."""
    values: dict[str, Any] = {node.name: node.meta.get("val") for node in program.graph.nodes}
    inputs = [
        values[spec.arg.name]
        for spec in program.graph_signature.input_specs
        if spec.kind is torch.export.graph_signature.InputKind.USER_INPUT
    ]
    dynamic: list[str] = []
    constant: list[str] = []
    for index, name, dimensions in requested:
        for dim in dimensions:
            fixed = is_concrete_int(inputs[index].shape[dim])
            (constant if fixed else dynamic).append(f"{name}[{dim}]")
    return tuple(dynamic), tuple(constant)


def _remarks(detail: records.ExportDetail) -> Iterator[str]:
    """Yield phrases for people besides the verdict."""
    if detail.non_strict is not None and detail.strict is not None:
        strict = detail.strict
        yield "strict exports" if strict.exported else f"strict fails: {strict.code}"
    if detail.dynamic_dimensions or detail.specialized_dimensions:
        stayed, lost = len(detail.dynamic_dimensions), len(detail.specialized_dimensions)
        yield f"{stayed} of {stayed + lost} dimensions stay dynamic"
    if detail.draft is not None:
        findings = len(detail.draft.failures)
        yield f"draft exports with {findings} findings" if detail.draft.exported else "draft fails"
