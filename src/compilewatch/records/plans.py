"""What a sweep evaluates: its requests, the options they share, and shards of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from compilewatch.records.base import SCHEMA_VERSION, Depth, Record, Tier
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
        """This shard's part of a plan's models: the same on every machine, in any order.

        A name goes to the shard that its hash prefers and that has room. So shards differ by one
        model at most, and a plan that changes a little moves few models to another machine, whose
        stored results do not know them.
        """
        ordered = sorted(set(names), key=_hash)
        least, more = divmod(len(ordered), self.count)
        held: list[set[str]] = [set() for _ in range(self.count)]
        for name in ordered:
            preferred = sorted(range(self.count), key=lambda n: _hash(f"{n} {name}"))
            for number in preferred:
                size = len(held[number])
                if size < least or (size == least and more):
                    more -= size == least
                    held[number].add(name)
                    break
        return frozenset(held[self.index - 1])


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


class Options(Record, frozen=True, kw_only=True):
    """How every model of a plan is asked. Paths are absolute.

    `environments` are those that exist; a target that names another one is not asked.

    `inputs_file` stands in for the models' own; it makes sense for a plan of one model.
    """

    environments: tuple[Environment, ...]
    tier: Tier = Tier.AUTO
    depth: Depth = Depth.FULL
    deadlines: Deadlines = Deadlines()
    memory_limit_bytes: int = 8 * 2**30
    overrides_dir: str | None = None
    neuron_operators: str | None = None
    inputs_file: str | None = None
    keep_artifacts: bool = True


class Plan(Record, frozen=True, kw_only=True):
    """What a sweep asks: `requests` to be answered, `skipped` that are not asked, with reasons.

    Every model and target of the shard stands in exactly one of them. `digest` is the same for
    all shards of one plan and changes with every question in it.
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
        """How many requests are answered by another one of this plan."""
        return len(self.requests) - len(self.questions())

    def questions(self) -> dict[str, list[Request]]:
        """Requests by key, in order: the first of each list is asked, the others share."""
        found: dict[str, list[Request]] = {}
        for request in self.requests:
            found.setdefault(request.key, []).append(request)
        return found
