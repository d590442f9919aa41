"""The plan: what to mark, to pad and to call first, so that a range of sizes compiles least."""

from __future__ import annotations

import inspect
import operator
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import msgspec
import torch
import torch._dynamo
from torch.utils._pytree import tree_leaves

from compilewatch.extras.fixes.worker import verifying
from compilewatch.extras.shapes.records import ServedSizes, ShapePlan
from compilewatch.extras.shapes.worker import serving
from compilewatch.extras.shapes.worker.search import (
    Domains,
    Geometry,
    Search,
    middle,
    of_real,
    words_of,
)
from compilewatch.extras.shapes.worker.serving import Sizes, size_by
from compilewatch.records import ShapeSeries
from compilewatch.worker.example_inputs.sizes import BATCH
from compilewatch.worker.reproduce import dtype_source, model_source
from compilewatch.worker.subject import Subject
from compilewatch.worker.targets.dynamo.series import series
from compilewatch.worker.value_source import OBJECTS, given_source, has_objects, inputs_source

COMPARING = ("leaves", "has_attributes", "tensors", "loss_of", "size_of", "words_of")
"""Functions of the verification of fixes that the script has, too."""

_COMPARING_IMPORTS = """
import functools
import importlib
import logging
from collections import OrderedDict, defaultdict
from types import ModuleType
""".strip()

PADDING = '''
def serve(compiled, *args, **kwargs):
    """Call the compiled model: small sizes are padded, and what it returns is cut."""
    sizes = SIZES_OF(args, kwargs)
    larger = {n: next((m for m in PADDED.get(n, ()) if m >= s), s) for n, s in sizes.items()}
    if larger == sizes:
        return compiled(*args, **kwargs)
    args, kwargs = list(args), dict(kwargs)
    for key, dimensions in FOLLOWS.items():
        values = args if isinstance(key, int) else kwargs
        for dimension, name in dimensions.items():
            values[key] = padded(values[key], dimension, larger[name], name == "batch")
    leaves, spec = tree_flatten(compiled(*args, **kwargs))
    for number, dimensions in OUTPUTS.items():
        for dimension, name in dimensions.items():
            leaves[number] = leaves[number].narrow(dimension, 0, sizes[name])
    return tree_unflatten(leaves, spec)


def padded(value, dimension, size, repeat):
    """Repeat the last sample of a batch; other dimensions get zeros, which the mask leaves out."""
    before = value.shape[dimension]
    if repeat:
        picks = torch.arange(size, device=value.device).clamp(max=before - 1)
        return value.index_select(dimension, picks)
    shape = list(value.shape)
    shape[dimension] = size - before
    return torch.cat([value, value.new_zeros(shape)], dimension)
'''

UNPADDED = '''
def serve(compiled, *args, **kwargs):
    """Call the compiled model."""
    return compiled(*args, **kwargs)
'''


@dataclass(frozen=True)
class Candidate:
    """A plan to be tried: how dimensions are marked, what they are padded to."""

    title: str
    marks: dict[str, str] = field(default_factory=dict)
    padded: dict[str, tuple[int, ...]] = field(default_factory=dict)
    dynamic: bool | None = None

    @property
    def is_simple(self) -> bool:
        return not self.padded and "unbacked" not in self.marks.values()


class Traced(msgspec.Struct):
    """A series, which graph serves which sizes, and of a plan where its graphs begin and end."""

    series: ShapeSeries
    served: ServedSizes
    bounds: list[Sizes] = []

    @property
    def compilations(self) -> int:
        return self.series.compilations

    @property
    def sizes(self) -> list[Sizes]:
        """Those of each call."""
        return [call.sizes for call in self.series.calls]


class Planner:
    """Tries plans for a range of sizes, of which `calls` say the most."""

    def __init__(self, geometry: Geometry, domains: Domains, known: Sequence[ShapeSeries]) -> None:
        self._geometry, self._domains, self._known = geometry, domains, known
        self._calls = [call.sizes for call in known[0].calls if not call.rejected]
        self._middle = middle(geometry, domains)
        self._small = [name for name, domain in domains.items() if domain[0] < 2]
        self.least = min(series.calls[0].compiled for series in known)
        """The graphs of one call, below which no plan goes."""

    def plan(self, without: Sequence[str]) -> ShapePlan | None:
        """Return the candidate that needs the fewest compilations, None if none needs fewer.

        Of equal ones it is the first, which has the simplest code. `known` are those of the model
        as it is compiled anyway; where they reach the limit of recompilations, none is fewer.
        """
        known = [series.compilations for series in self._known if series.limit is None]
        fewest = min(known, default=2**31)
        if fewest <= self.least:
            return None
        candidates = [each for each in self._candidates() if each.title not in without]
        tried: dict[str, Traced] = {}
        # Without sizes 0 and 1 the simple ones may do; with them, they are no better than others.
        for candidate in reversed(candidates) if self._small else candidates:
            improved = any(result.compilations < fewest for result in tried.values())
            if self._small and improved and candidate.is_simple:
                break
            attempt = partial(self._tried, candidate)
            result = self._geometry.subject.in_fork(attempt, Traced | None)
            if result is not None:
                tried[candidate.title] = result
                if result.compilations == self.least:
                    break
        ranked = sorted(
            (tried[each.title].compilations, number, each)
            for number, each in enumerate(candidates)
            if each.title in tried
        )
        if not ranked or ranked[0][0] >= fewest:
            return None
        return self._written(ranked[0][2], tried)

    def _candidates(self) -> Iterator[Candidate]:
        """Yield plans, the simplest code first."""
        dynamic = {dim.name for graph in self._known[-1].graphs for dim in graph.dynamic}
        names = [name for name in self._domains if dynamic & set(self._dimensions(name))]
        marked = dict.fromkeys(names, "dynamic")
        yield Candidate("compile with dynamic=True, and begin with these calls", dynamic=True)
        if names:
            words = " and ".join(names)
            yield Candidate(f"mark {words} as dynamic", marked)
            unbacked = dict.fromkeys(names, "unbacked")
            for name in (n for n in names if n in self._small and len(names) > 1):
                mark = f"mark {name} as unbacked, and"
                others = {name: "unbacked"}
                yield Candidate(f"{mark} compile with dynamic=True", others, dynamic=True)
                yield Candidate(f"{mark} others as dynamic", marked | others)
            yield Candidate(f"mark {words} as unbacked", unbacked)
        may_pad = self._may_pad()
        small: dict[str, tuple[int, ...]] = {name: (2,) for name in self._small if name in may_pad}
        if small and names:
            words = f"pad {' and '.join(small)} 1 to 2"
            # Marks are refused where a graph is for a part of the range only.
            yield Candidate(f"compile with dynamic=True, and {words}", {}, small, dynamic=True)
            yield Candidate(f"mark {' and '.join(names)} as dynamic, and {words}", marked, small)
        for name in may_pad.difference(names):
            largest = self._domains[name][-1]
            buckets = tuple(sorted({max(largest >> k, 2) for k in range(4)}))
            words = ", ".join(map(str, buckets))
            yield Candidate(f"pad {name} to {words}", marked, small | {name: buckets})

    def _dimensions(self, name: str) -> list[str]:
        return [
            f"{self._geometry.names[key]}.{dimension}"
            for key, dimensions in self._geometry.follows.items()
            for dimension, (_, factors) in dimensions.items()
            if name in factors
        ]

    def _may_pad(self) -> set[str]:
        """Return the dimensions that can be padded: the batch, and a sequence that has a mask."""
        rules = [
            (str(self._geometry.names[key]), rule)
            for key, dimensions in self._geometry.follows.items()
            for rule in dimensions.values()
        ]
        names = {
            name
            for name in self._domains
            if all(rule == (0, {name: 1}) for _, rule in rules if name in rule[1])
            and (name == "batch" or any("mask" in key for key, rule in rules if name in rule[1]))
        }
        return names if names and self._outputs is not None else set()

    @cached_property
    def _outputs(self) -> dict[int, dict[int, str]] | None:
        return self._geometry.subject.in_fork(
            self._follow_outputs, dict[int, dict[int, str]] | None
        )

    def _follow_outputs(self, subject: Subject) -> dict[int, dict[int, str]] | None:
        """Return which dimensions of outputs are those of inputs; None if some are more."""
        geometry = replace(self._geometry, subject=subject)

        def of(values: Iterable[object]) -> list[tuple[int, ...]]:
            return [
                tuple(map(int, value.shape)) if isinstance(value, torch.Tensor) else ()
                for value in values
            ]

        def shapes(sizes: Sizes) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
            """Return those of the leaves of the output, and of what objects in it hold."""
            with subject.tensors(), torch.no_grad():
                called = replace(subject, inputs=geometry.inputs(sizes))
                output = called.call(subject.module)
            listed = tree_leaves(output)
            ids = set(map(id, listed))
            return of(listed), of(v for _, v in verifying.leaves(output, "") if id(v) not in ids)

        (before, cached), outputs = shapes(self._middle), dict[int, dict[int, str]]()
        for name in self._domains:
            after, held = shapes(self._middle | {name: self._middle[name] + 1})
            if held != cached:  # nothing can cut what is in a cache
                return None
            for number, (ours, theirs) in enumerate(zip(before, after, strict=True)):
                for dimension, (size, larger) in enumerate(zip(ours, theirs, strict=True)):
                    if larger not in (size, size + 1):
                        return None
                    if larger > size:
                        outputs.setdefault(number, {})[dimension] = name
        return outputs

    def _marks(
        self, candidate: Candidate, *, first: bool
    ) -> Iterator[tuple[int | str, str, int, dict[str, object]]]:
        """Yield each call that marks a dimension of an argument: its function and arguments.

        After the `first` call, Dynamo knows which dimensions are dynamic, but not which unbacked.
        """
        geometry = replace(self._geometry, padded=candidate.padded)
        ends = [{n: domain[end] for n, domain in self._domains.items()} for end in (0, -1)]
        low, high = map(geometry.of_call, ends)
        for key, dimensions in geometry.follows.items():
            for dimension, rule in dimensions.items():
                mark = {candidate.marks.get(name, "") for name in rule[1]}
                if mark == {"dynamic"} and first:
                    bounds: dict[str, object] = {
                        "min": max(size_by(rule, low), 2),
                        "max": size_by(rule, high),
                    }
                    yield key, "mark_dynamic", dimension, bounds
                elif mark == {"unbacked"}:
                    constant, factors = rule
                    label = "+".join(f"{factor}*{name}" for name, factor in factors.items())
                    label = f"{label}+{constant}" if constant else label.removeprefix("1*")
                    yield key, "decorators.mark_unbacked", dimension, {"shape_id": label}

    def _tried(self, candidate: Candidate, subject: Subject) -> Traced | None:
        """Return what a candidate compiles; None where it fails, or breaks a graph."""
        geometry = replace(self._geometry, subject=subject, padded=candidate.padded)
        ones = [dict[str, int]()]
        for name in self._small:
            if candidate.marks.get(name) != "unbacked" and geometry.of_call({name: 1}) == {name: 1}:
                ones += [each | {name: 1} for each in ones]
        first = [geometry.of_call(self._middle | sizes) for sizes in ones]
        for name, paddings in candidate.padded.items():
            first += [first[0] | {name: size} for size in paddings if size > first[0][name]]
        with series(subject, dynamic=candidate.dynamic) as compiled:
            caller = Search(compiled, geometry, self._domains)
            for number, sizes in enumerate([*first, *self._calls]):
                inputs = geometry.inputs(sizes)
                for key, function, dimension, options in (
                    self._marks(candidate, first=not number) if number < len(first) else ()
                ):
                    holder = inputs.args if isinstance(key, int) else inputs.kwargs
                    marking = operator.attrgetter(function)(torch._dynamo)
                    marking(holder[key], dimension, **options)  # type: ignore[index]
                call = compiled.call(sizes, inputs)
                if call.error or compiled.limit is not None or call.compiled > self.least:
                    return None
            bounds = [self._middle | {n: size} for n in self._domains for size in caller.bounds(n)]
            return Traced(compiled.record(), caller.served(), bounds)

    def _written(self, candidate: Candidate, tried: dict[str, Traced]) -> ShapePlan:
        best = tried[candidate.title]
        first = [call.sizes for call in best.series.calls if call.compiled]
        code = self._code(candidate, first)
        compared = list({words_of(sizes): sizes for sizes in (*self._calls, *best.bounds)}.values())
        ranges = ", ".join(f"{n} {d[0]:,} to {d[-1]:,}" for n, d in self._domains.items())
        given = ", ".join(map(str, self._geometry.names.values()))
        holds_if = [
            f"the sizes are {ranges}",
            f"each call passes {given}, on one device and of one type, and no other arguments",
            "calls are all with gradients, or all without: the other kind compiles again",
        ]
        if BATCH in candidate.padded:
            holds_if.append("samples do not depend on each other")
        if candidate.padded.keys() - {BATCH}:
            holds_if.append("the mask leaves out what is padded")
        return ShapePlan(
            title=candidate.title,
            series=best.series,
            served=best.served,
            code=code,
            script=self._script(candidate, code, compared),
            holds_if=tuple(holds_if),
            tried={title: result.compilations for title, result in tried.items()},
        )

    def _code(self, candidate: Candidate, first: Sequence[Sizes]) -> str:
        """Return the plan as code to paste."""
        option = ", dynamic=True" if candidate.dynamic else ""
        pytree = "from torch.utils._pytree import tree_flatten, tree_unflatten"
        lines = [
            "import torch\n" + pytree if candidate.padded else "import torch",
            "def compile_model(model, **options):\n"
            f"    return torch.compile(model{option}, **options)",
        ]
        calls = ['"""Compile all graphs, by calls of these sizes in this order."""']
        for number, sizes in enumerate(first):
            given = ", ".join(f'"{name}": {size}' for name, size in sizes.items())
            calls.append(f"args, kwargs = inputs(**{{{given}}})")
            for key, function, dimension, options in self._marks(candidate, first=not number):
                holder = f"args[{key}]" if isinstance(key, int) else f'kwargs["{key}"]'
                words = "".join(f", {name}={value!r}" for name, value in options.items())
                calls.append(f"torch._dynamo.{function}({holder}, {dimension}{words})")
            calls.append("serve(compiled, *args, **kwargs)")
        lines.append("def warm_up(compiled, inputs):\n" + textwrap.indent("\n".join(calls), "    "))
        if candidate.padded:
            lines.append(self._padding(candidate))
        else:
            lines.append(UNPADDED.strip())
        return "\n\n\n".join(lines) + "\n"

    def _padding(self, candidate: Candidate) -> str:
        follows: dict[int | str, dict[int, str]] = {}
        for key, dimensions in self._geometry.follows.items():
            for dimension, (_, factors) in dimensions.items():
                for name in candidate.padded.keys() & factors.keys():
                    follows.setdefault(key, {})[dimension] = name
        sizes = {
            name: (f"args[{key}]" if isinstance(key, int) else f'kwargs["{key}"]', dimension)
            for key, dimensions in follows.items()
            for dimension, name in dimensions.items()
        }
        outputs = {
            number: kept
            for number, dimensions in (self._outputs or {}).items()
            if (kept := {d: name for d, name in dimensions.items() if name in candidate.padded})
        }
        words = ", ".join(f'"{name}": {at}.shape[{dim}]' for name, (at, dim) in sizes.items())
        tables = (
            f"PADDED = {candidate.padded!r}  # sizes up to the last one become the next of these\n"
            f"FOLLOWS = {follows!r}\n"
            f"OUTPUTS = {outputs!r}  # of the tensors that the model returns, in this order\n\n"
        )
        return tables + PADDING.replace("SIZES_OF(args, kwargs)", f"{{{words}}}").rstrip()

    def _script(self, candidate: Candidate, code: str, compared: Sequence[Sizes]) -> str:
        """Return a script of plain PyTorch that confirms the plan."""
        geometry, real = self._geometry, of_real(self._geometry).subject
        request, inputs, train = real.request, real.inputs, real.module.training
        tensor = given_source if inputs.strategy in ("file", "factory") else None
        model = [
            "torch.manual_seed(0)",
            *model_source(request, real.module, getattr(real.module, "config", None)),
            *dtype_source(real.module),
            f"return model.train({train})",
        ]
        text = inspect.getsource(serving)
        text = text.partition('"""\n\n')[2]
        text = re.sub(r"^from compilewatch.*\n", "", text, flags=re.MULTILINE).strip()
        functions = [inspect.getsource(getattr(verifying, name)) for name in COMPARING]
        ranges = {
            name: domain if isinstance(domain, range) else list(domain)
            for name, domain in self._domains.items()
        }
        parts = [
            f'"""{request.model.name}: {candidate.title}, in plain PyTorch {torch.__version__}.\n\n'
            "It counts what a random sample of the sizes compiles, and compares outputs and\n"
            'gradients with eager mode. Exit status: 0 the plan holds, 1 it does not.\n"""',
            text,
            _COMPARING_IMPORTS,
            "\n\n".join(functions).strip(),
            OBJECTS.strip() if has_objects(inputs) else "",
            f"# --- the plan {'-' * 84}",
            code.strip(),
            f"# --- the model {'-' * 83}",
            "def build():\n" + textwrap.indent("\n".join(model), "    "),
            "def inputs(**sizes):\n    torch.manual_seed(0)\n"
            + textwrap.indent(inputs_source(inputs, tensor=tensor), "    ")
            + f"\n    follows = {geometry.follows!r}\n"
            "    return resized((args, kwargs), follows, sizes)",
            f'if __name__ == "__main__":\n    ranges = {ranges!r}\n'
            f"    compared = {list(compared)!r}\n"
            "    plan = (compile_model, warm_up, serve)\n"
            "    sys.exit(main(Proof(build, inputs, plan, ranges=ranges, compared=compared)))\n",
        ]
        return "\n\n\n".join(filter(None, parts))
