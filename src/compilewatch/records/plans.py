"""The plan of a sweep: its requests, the options that they share, and its shards."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from compilewatch.records.base import SCHEMA_VERSION, Depth, Record, Tier, Variants
from compilewatch.records.requests import Deadlines, Request
from compilewatch.records.results import Result
from compilewatch.records.runs import Environment


class Shard(Record, frozen=True, kw_only=True):
    """Part `index` of `count`, counted from 1."""

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def holds(self, names: Iterable[str]) -> frozenset[str]:
        """Return this shard's part of a plan's models: the same on every machine, in any order.

        A model is assigned to the first shard in the order given by its hash that is not full.
        Sizes therefore differ by at most one, and a small change of the plan moves few models to
        another machine, which has no stored results of them.
        """
        ordered = sorted(set(names), key=_hash)
        least, more = divmod(len(ordered), self.count)
        parts: list[set[str]] = [set() for _ in range(self.count)]
        for name in ordered:
            preferred = sorted(range(self.count), key=lambda n: _hash(f"{n} {name}"))
            for number in preferred:
                size = len(parts[number])
                if size < least or (size == least and more):
                    more -= size == least
                    parts[number].add(name)
                    break
        return frozenset(parts[self.index - 1])


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


class Options(Record, frozen=True, kw_only=True):
    """Options that all requests of a plan share. Paths are absolute.

    `environments` are those that exist; a target that names another one is not evaluated.
    `inputs_file` replaces the inputs files of the models, which is useful for a plan of one model.
    """

    environments: tuple[Environment, ...]
    tier: Tier = Tier.AUTO
    depth: Depth = Depth.FULL
    variants: Variants = Variants.MAIN
    deadlines: Deadlines = Deadlines()
    memory_limit_bytes: int = 8 * 2**30
    overrides_dir: str | None = None
    neuron_operators: str | None = None
    inputs_file: str | None = None
    keep_artifacts: bool = True


class Plan(Record, frozen=True, kw_only=True):
    """What a sweep evaluates: `requests`, and `skipped` with the reasons why they do not run.

    Every model and target of the shard is in exactly one of the two. `digest` is equal for all
    shards of one plan and depends on every request in it.
    """

    requests: tuple[Request, ...]
    skipped: tuple[Result, ...]
    digest: str
    shard: Shard | None = None
    schema_version: int = SCHEMA_VERSION

    @property
    def total(self) -> int:
        return len(self.requests) + len(self.skipped)

    @property
    def duplicates(self) -> int:
        """Number of requests that share the result of another request of this plan."""
        return len(self.requests) - len(self.requests_by_key())

    def requests_by_key(self) -> dict[str, list[Request]]:
        """Return the requests by key, in order.

        The first request of each list is evaluated; the others share its result.
        """
        by_key: dict[str, list[Request]] = {}
        for request in self.requests:
            by_key.setdefault(request.key, []).append(request)
        return by_key
