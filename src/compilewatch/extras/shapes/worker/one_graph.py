"""One graph for all sizes: captured once, run without its guards, compared with eager mode.

Servers compile so (vLLM's `TorchCompileWithNoGuardsWrapper`): the dimensions that they serve are
marked as dynamic, all others are static, and `guard_filter_fn` drops the guards
(`torch.compiler.skip_all_guards_unsafe`). They mark with `mark_dynamic`, which rejects a model that
makes a constant of a size; `maybe_mark_dynamic` shows what such a graph computes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import torch
import torch._dynamo
from torch.fx import GraphModule

from compilewatch.contract.failures import one_line
from compilewatch.extras.shapes.records import REPORT_FILE, OneGraph, ServedSize, SizeLimit
from compilewatch.extras.shapes.worker.search import (
    Domains,
    Geometry,
    changes,
    coarse,
    domains_of,
    geometry_of,
    middle,
    within,
)
from compilewatch.extras.shapes.worker.serving import Sizes
from compilewatch.records import Phase, StackFrame, Status, TargetOutcome
from compilewatch.worker.subject import Subject
from compilewatch.worker.targets import numerics
from compilewatch.worker.targets.dynamo.versions import Versions
from compilewatch.worker.targets.execution import observed, observed_in_float64
from compilewatch.worker.targets.inductor import prepare_tool_chain

_BUDGET_SECONDS = 120.0
"""For the comparisons of all sizes, the smallest first. What would take longer is not run."""


def one_graph(subject: Subject, values: dict[str, Any]) -> TargetOutcome:
    """Write to a file what one graph computes for the sizes of `domains` within `limits`.

    Needs real tensors. The backend is that of the request, or Inductor, as servers have it.
    """
    from torch._inductor import config
    from torch._inductor.utils import fresh_cache

    subject.enter(Phase.COMPILE)
    backend = subject.request.target.backend or "inductor"
    if backend == "inductor":
        prepare_tool_chain()
    limits = msgspec.convert(values["limits"], tuple[SizeLimit, ...])
    domains = within(domains_of(values), limits)
    with config.patch(compile_threads=1, fallback_random=True), fresh_cache():
        record = subject.in_fork(partial(_one_graph, domains, backend), OneGraph)
    (subject.artifacts / REPORT_FILE).write_bytes(msgspec.json.encode(record))
    return TargetOutcome(status=Status.PASS, artifacts=(REPORT_FILE,))


def _one_graph(domains: Domains, backend: str, subject: Subject) -> OneGraph:
    geometry = geometry_of(subject, list(domains))
    record = OneGraph(captured=middle(geometry, domains), backend=backend)
    try:
        graph = _Graph(geometry, record)
    except Exception as error:  # noqa: BLE001  (the edge to the compiler and to model code)
        return msgspec.structs.replace(record, error=one_line(error))
    return msgspec.structs.replace(record, calls=tuple(graph.compared(domains)))


class _Graph:
    """The graph of one call, which then serves all sizes."""

    def __init__(self, geometry: Geometry, record: OneGraph) -> None:
        subject = geometry.subject
        self._geometry, self._captured = geometry, record.captured
        subject.forget()
        versions = Versions(dynamic=False)

        def noted(graph: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
            versions.graph(graph)
            compiled: Callable[..., Any] = torch._dynamo.lookup_backend(record.backend)(
                graph, inputs
            )
            return compiled

        self._compiled = torch.compile(
            subject.module,
            backend=noted,
            fullgraph=True,
            dynamic=False,
            options={"guard_filter_fn": torch.compiler.skip_all_guards_unsafe},
        )

        def marked(*args: Any, **kwargs: Any) -> Any:
            for key, dimensions in geometry.follows.items():
                tensor = args[key] if isinstance(key, int) else kwargs[key]
                torch._dynamo.maybe_mark_dynamic(tensor, list(dimensions))
            return self._compiled(*args, **kwargs)

        with versions.listening():
            observed(self._at(self._captured), marked)
        (self._version,) = (v for v in versions.compiled.values() if v.environment is not None)

    def _at(self, sizes: Sizes) -> Subject:
        return replace(self._geometry.subject, inputs=self._geometry.inputs(sizes))

    def compared(self, domains: Domains) -> Iterator[ServedSize]:
        """Yield what the graph computes for each boundary of what is served, the smallest first."""
        spent = rate = 0.0
        for sizes in sorted(self._boundaries(domains), key=_product):
            if spent + rate * _product(sizes) > _BUDGET_SECONDS:
                late = f"all sizes together would take over {_BUDGET_SECONDS:.0f} s"
                yield ServedSize(sizes=sizes, status=Status.SKIPPED, detail=late)
                continue
            self._geometry.subject.enter(Phase.COMPARE)
            started = time.monotonic()
            status, detail = self._verdict(self._at(sizes))
            seconds = time.monotonic() - started
            spent, rate = spent + seconds, seconds / _product(sizes)
            guard, needed_by = self._unmet(self._geometry.tensors(sizes))
            yield ServedSize(
                sizes=sizes, status=status, detail=detail, guard=guard, needed_by=needed_by
            )

    def _boundaries(self, domains: Domains) -> list[Sizes]:
        """The captured sizes; of each dimension, the others as captured: the ends, some in between,
        and both sides of each change of a guard; and the ends of all dimensions together."""
        calls = [self._captured]
        for name, domain in domains.items():
            last, own = len(domain) - 1, self._captured[name]
            places = {0, 1, 2, math.isqrt(last), last // 4, last // 2, last}
            chosen = {domain[place] for place in places if place <= last}
            chosen |= set(changes(domain, coarse(domain, own, own), partial(self._guards, name)))
            calls += [self._captured | {name: size} for size in sorted(chosen)]
        calls += [{name: domain[end] for name, domain in domains.items()} for end in (0, -1)]
        return [dict(call) for call in dict.fromkeys(tuple(call.items()) for call in calls)]

    def _guards(self, name: str, size: int) -> set[str]:
        """The guards that do not hold for a size of one dimension, the others as captured."""
        tensors = self._geometry.tensors(self._captured | {name: size})
        return {str(guard) for guard, _ in self._version.all_unmet(tensors)}

    def _unmet(self, tensors: Sizes) -> tuple[str, StackFrame | None]:
        """The first guard that does not hold, and its line; or the bound, usually 2, that torch
        assumes without a guard."""
        if (unmet := self._version.unmet(tensors)) is not None:
            return str(unmet[0]), unmet[1]
        for name, (lower, _) in self._version.dynamic().items():
            if tensors.get(name, lower) < lower:
                return f"{name} >= {lower}", None
        return "", None

    def _verdict(self, at: Subject) -> tuple[Status, str]:
        eager, compiled = partial(observed, at, at.module), partial(observed, at, self._compiled)
        try:
            expected = numerics.seeded(eager)
        except Exception as error:  # noqa: BLE001  (model code)
            return Status.UNSUPPORTED, f"eager mode fails: {one_line(error)}"
        try:
            actual = numerics.seeded(compiled)
            if not numerics.compare(expected, actual, None).mismatches:
                return Status.PASS, ""
            result = numerics.assess(eager, compiled, partial(observed_in_float64, at))
        except Exception as error:  # noqa: BLE001  (the edge to the compiler)
            return Status.ERROR, one_line(error)
        if not result.deterministic:
            return Status.UNSUPPORTED, "eager mode differs from one call to the next"
        return (Status.MISMATCH if result.mismatches else Status.PASS), "; ".join(result.mismatches)


def _product(sizes: Sizes) -> int:
    return max(math.prod(sizes.values()), 1)
