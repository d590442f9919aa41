"""Which sizes a series is called with: what Dynamo says of its graphs decides on the next call.

A graph knows for which sizes it is (`Version.holds`). A size that no graph is for is called; where
all have one, both sides of each bound, 1 and 2, and the ends are, to confirm it.
"""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import msgspec
import torch

from compilewatch.contract.failures import one_line, type_names
from compilewatch.errors import InputsError
from compilewatch.extras.shapes.records import ServedSizes, SizeLimit
from compilewatch.extras.shapes.worker.serving import Follows, Sizes, resized, size_by
from compilewatch.records import CodePlace, Mode, Tier
from compilewatch.worker.example_inputs import make_inputs
from compilewatch.worker.example_inputs.sizes import (
    SEQUENCE,
    arguments,
    inputs_of,
    known_sizes,
    sizes_of,
)
from compilewatch.worker.model.resolve import build_model
from compilewatch.worker.model.shrink import PARAMETER_BUDGET
from compilewatch.worker.phases import FAKE_ERRORS
from compilewatch.worker.reproduce import at_written_depth
from compilewatch.worker.subject import ExampleInputs, Subject
from compilewatch.worker.targets.dynamo.graph_breaks import place_of, user_stack
from compilewatch.worker.targets.dynamo.series import Series

MOST_CALLS = 20

SCRIPT_PARAMETERS = 2_000_000
"""Of a model on real tensors: with the usual budget, a call takes a second and more."""

Domains = Mapping[str, Sequence[int]]
"""The sizes of each dimension that are served, in order."""


def domains_of(values: Mapping[str, Any]) -> dict[str, Sequence[int]]:
    """Read the option `domains`: of each, whether it is (first, last) or a list, and the sizes."""
    return {
        name: range(sizes[0], sizes[1] + 1) if is_range else sizes
        for name, (is_range, sizes) in values["domains"].items()
    }


@dataclass(frozen=True)
class Geometry:
    """How the sizes of a subject's tensors follow from those that are served.

    Sizes of a dimension in `padded` become the next one of those there.
    """

    subject: Subject
    names: Mapping[int | str, str]
    follows: Follows
    padded: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def of_call(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the sizes that the model is called with."""
        return {
            name: next((more for more in self.padded.get(name, ()) if more >= size), size)
            for name, size in sizes.items()
        }

    def inputs(self, sizes: Mapping[str, int]) -> ExampleInputs:
        """Return the subject's inputs in other sizes."""
        own = self.subject.inputs
        with self.subject.tensors(), torch.no_grad():
            args, kwargs = resized((own.args, own.kwargs), self.follows, self.of_call(sizes))
        return replace(own, args=args, kwargs=kwargs)

    def tensors(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the sizes of tensors, by Dynamo's names of their dimensions."""
        called = self.of_call(sizes)
        return self._own | {
            f"{self.names[key]}.{dimension}": size_by(rule, called)
            for key, dimensions in self.follows.items()
            for dimension, rule in dimensions.items()
        }

    @cached_property
    def _own(self) -> dict[str, int]:
        return {name: size for name, size in sizes_of(self.subject).items() if "." in name}


def geometry_of(subject: Subject, names: Sequence[str]) -> Geometry:
    """Find out which dimensions of the inputs follow from which sizes.

    Raises UsageError for a dimension that the inputs do not have.
    """
    own = known_sizes(subject, names)
    given = subject.inputs
    keys: dict[int | str, str] = dict(
        zip(range(len(given.args)), arguments(subject, given), strict=False)
    )
    keys |= {name: name for name in given.kwargs}
    constants: dict[int | str, dict[int, tuple[int, dict[str, int]]]] = {}
    for name in names:
        for step in (1, -1):
            changed = arguments(subject, inputs_of(subject, {name: own[name] + step}))
            before = arguments(subject, given)
            moved = {
                (key, dimension): step * (int(size) - int(before[argument].shape[dimension]))
                for key, argument in keys.items()
                if isinstance(before[argument], torch.Tensor)
                for dimension, size in enumerate(changed[argument].shape)
                if int(size) != int(before[argument].shape[dimension])
            }
            if moved:
                break
        for (key, dimension), factor in moved.items():
            dimensions = constants.setdefault(key, {})
            size = int(before[keys[key]].shape[dimension])
            constant, factors = dimensions.get(dimension, (size, {}))
            dimensions[dimension] = (constant - factor * own[name], {**factors, name: factor})
    return Geometry(subject, keys, constants)


def middle(geometry: Geometry, domains: Domains) -> Sizes:
    """Return sizes that are nothing special: not 0 or 1, not equal, near those of the inputs."""
    own, chosen = sizes_of(geometry.subject), dict[str, int]()
    fixed = {size for name, size in own.items() if "." in name}
    for name, domain in domains.items():
        near = sorted(domain, key=lambda size: (size < 2, abs(size - own[name] - 1)))
        free = (size for size in near[:16] if size not in fixed | set(chosen.values()))
        chosen[name] = next(free, near[0])
    return chosen


def limits_of(geometry: Geometry, domains: Domains) -> tuple[SizeLimit, ...]:
    """Return where each dimension ends, as eager mode rejects what is beyond.

    Raises InputsError where it rejects sizes in the middle of all dimensions.
    """
    inner = middle(geometry, domains)
    ends = [(name, end) for name in domains for end in (0, len(domains[name]) - 1)]
    longest = (SEQUENCE, len(domains.get(SEQUENCE, ())) - 1)

    def all_limits(subject: Subject) -> tuple[SizeLimit, ...]:
        inside = replace(geometry, subject=subject)
        if (limit := rejection(inside, inner)) is not None:
            raise InputsError(f"the model itself fails for {words_of(inner)}: {limit.error}")
        limits = {end: _limit(inside, domains, *end, inner) for end in ends}
        if longest in ends and limits[longest] is None:
            # Fake tensors have no values, so that no position is beyond the last one.
            least = inner | {name: sizes[0] for name, sizes in domains.items() if name != SEQUENCE}
            limits[longest] = _limit(of_real(inside), domains, *longest, least)
        return tuple(filter(None, limits.values()))

    return geometry.subject.in_fork(all_limits, tuple[SizeLimit, ...])


def within(domains: Domains, limits: Iterable[SizeLimit]) -> Domains:
    """Return the sizes of each dimension that eager mode accepts."""
    bounds = dict(domains)
    for limit in limits:
        domain = bounds[limit.name]
        at = domain.index(limit.size)
        bounds[limit.name] = domain[: at + 1] if limit.upper else domain[at:]
    return bounds


def _limit(
    geometry: Geometry, domains: Domains, name: str, end: int, inner: Sizes
) -> SizeLimit | None:
    """Return the last size towards an end that eager mode accepts; None where that is the end.

    Others have their `inner` sizes.
    """
    domain, upper = domains[name], end > 0
    accepted, limit = domain.index(inner[name]), rejection(geometry, inner | {name: domain[end]})
    while limit is not None and abs(end - accepted) > 1:
        between = (accepted + end) // 2
        if (nearer := rejection(geometry, inner | {name: domain[between]})) is None:
            accepted = between
        else:
            end, limit = between, nearer
    return limit and msgspec.structs.replace(limit, name=name, size=domain[accepted], upper=upper)


def of_real(geometry: Geometry) -> Geometry:
    """Return the geometry of the model on real tensors, of less width where it runs so.

    Raises ConfigError for a model that no script builds.
    """
    request = msgspec.structs.replace(geometry.subject.request, work=None, tier=Tier.REAL)
    request = at_written_depth(request)
    for budget in (SCRIPT_PARAMETERS, PARAMETER_BUDGET):
        module = build_model(request, None, budget=budget).module
        module.train(request.target.mode is Mode.TRAIN)
        subject = replace(
            geometry.subject,
            request=request,
            module=module,
            inputs=make_inputs(module, request, None),
            fake_mode=None,
        )
        real = replace(geometry, subject=subject)
        if subject.in_fork(partial(_own_rejection, real), SizeLimit | None) is None:
            break
    return real


def _own_rejection(geometry: Geometry, subject: Subject) -> SizeLimit | None:
    return rejection(replace(geometry, subject=subject), sizes_of(subject))


def rejection(geometry: Geometry, sizes: Sizes) -> SizeLimit | None:
    """Return why eager mode rejects sizes; None where it does not."""
    subject = geometry.subject
    try:
        with subject.tensors(), torch.no_grad():
            subject = replace(subject, inputs=geometry.inputs(sizes))
            subject.call(subject.module)
    except Exception as error:  # noqa: BLE001  (model code)
        frames = user_stack(traceback.extract_tb(error.__traceback__))
        frame = place_of([at for at in frames if not at.file.startswith("torch/")])
        place = CodePlace(file=frame.file, line=frame.line, function=frame.function)
        return SizeLimit(
            name="",
            size=0,
            upper=True,
            error=one_line(error),
            place=place,
            by_model=type_names(error).isdisjoint(FAKE_ERRORS),
        )
    return None


def words_of(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size}" for name, size in sizes.items())


class Search:
    """Calls a series with sizes until its graphs are known for all sizes of a range."""

    def __init__(self, compiled: Series, geometry: Geometry, domains: Domains) -> None:
        self._compiled, self._geometry, self._domains = compiled, geometry, domains
        self._middle = middle(geometry, domains)
        self.first = self._middle | {
            name: domains[name][0] for name in ("batch",) if name in domains
        }
        self._values = {
            name: coarse(domain, self.first[name], self._middle[name])
            for name, domain in domains.items()
        }
        self._served: dict[tuple[int, ...], int] = {}

    def wanted(self) -> Iterator[Sizes]:
        """Yield what has to be called next, until the graphs are known for all sizes."""
        if not self._compiled.calls:
            yield self.first
        while len(self._compiled.calls) < MOST_CALLS and self._compiled.limit is None:
            made = [call.sizes for call in self._compiled.calls]
            candidates = itertools.chain(self._unserved(), self._to_confirm())
            sizes = next((sizes for sizes in candidates if sizes not in made), None)
            if sizes is None:
                break
            yield sizes

    def call(self, sizes: Sizes) -> None:
        if self._compiled.call(sizes, self._geometry.inputs(sizes)).compiled:
            self._served.clear()  # the newer graph may serve sizes of an older one

    def graph_for(self, sizes: Sizes) -> int | None:
        """Return the number of the first graph of a call; None where it would be compiled.

        It is -1 where nothing compiles, or the sizes of the first graph's tensors are not those of
        arguments.
        """
        if not self._compiled.compile_ids:
            return -1
        key = tuple(sizes.values())
        if self._served.get(key) is not None:
            return self._served[key]
        entry, known = self._compiled.compile_ids[0].partition("/")[0], False
        tensors = self._geometry.tensors(sizes)
        for compile_id, version in reversed(self._compiled.versions.compiled.items()):
            if compile_id.partition("/")[0] == entry and not version.tensors.keys().isdisjoint(
                tensors
            ):
                known = True
                if version.holds(tensors):
                    self._served[key] = self._compiled.compile_ids.index(compile_id)
                    return self._served[key]
        return None if known else -1

    def _unserved(self) -> Iterator[Sizes]:
        """Yield sizes without a graph: first those that differ least from the first call."""
        ranks = {name: {v: i for i, v in enumerate(vs)} for name, vs in self._values.items()}

        def distance(sizes: Sizes) -> tuple[int, int]:
            rank = [ranks[name][size] for name, size in sizes.items()]
            return sum(map(bool, rank)), sum(rank)

        for sizes in sorted(self._grid(), key=distance):
            if self.graph_for(sizes) is None:
                yield sizes

    def _grid(self) -> Iterator[Sizes]:
        for values in itertools.product(*self._values.values()):
            yield dict(zip(self._values, values, strict=True))

    def _to_confirm(self) -> Iterator[Sizes]:
        """Yield the ends, 1 and 2, both sides of each bound, and the corners."""
        for name, domain in self._domains.items():
            special = (domain[-1], *(size for size in (1, 2) if size in domain), domain[0])
            for size in (*special, *self.bounds(name)):
                yield self._middle | {name: size}
        for end in (-1, 0):
            yield {name: domain[end] for name, domain in self._domains.items()}

    def bounds(self, name: str) -> Iterator[int]:
        """Yield both sides of each size at which another graph begins to serve."""
        return changes(
            self._domains[name],
            self._values[name],
            lambda size: self.graph_for(self._middle | {name: size}),
        )

    def served(self) -> ServedSizes:
        """Return which graph serves which sizes: of up to two dimensions, in steps."""
        names = list(self._domains)[:2]
        values = {name: tuple(sorted(self._values[name])) for name in names}
        called = {
            tuple(call.sizes.values()): call.served_by[0]
            for call in self._compiled.calls
            if call.served_by
        }
        graphs = []
        for point in itertools.product(*values.values()):
            sizes = self._middle | dict(zip(names, point, strict=True))
            graph = called.get(tuple(sizes.values()), self.graph_for(sizes))
            graphs.append(-1 if graph is None else graph)
        return ServedSizes(values=values, graphs=tuple(graphs))


def changes(
    domain: Sequence[int], values: Iterable[int], kind: Callable[[int], object]
) -> Iterator[int]:
    """Yield both sides of each change of `kind` between two of the values of a domain."""
    for low, high in itertools.pairwise(sorted(values)):
        at, first, last = kind(low), domain.index(low), domain.index(high)
        if at == kind(high):
            continue
        while last - first > 1:
            between = (first + last) // 2
            if kind(domain[between]) == at:
                first = between
            else:
                last = between
        yield from (domain[first], domain[last])


def coarse(domain: Sequence[int], first: int, inner: int) -> tuple[int, ...]:
    """Return some sizes of a domain: first the usual ones, at the end the special ones."""
    ends = (domain[-1], domain[-1] - 1, domain[0] + 1, domain[0], 2, 1)
    powers = [2**k + one for k in range(2, domain[-1].bit_length()) for one in (0, 1)]
    if len(domain) < 2 + len(powers):
        powers = list(domain)
    near = sorted(powers, key=lambda size: abs(size - inner))
    ordered = (first, inner, inner + 1, *(size for size in near if size not in ends), *ends)
    return tuple(size for size in dict.fromkeys(ordered) if size in domain)
