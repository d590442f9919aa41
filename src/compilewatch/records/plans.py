"""What a sweep evaluates: its requests, the options they share, and shards of them."""

from __future__ import annotations

import hashlib

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

    def holds(self, name: str) -> bool:
        """By a hash of the model's name alone: the same everywhere, whatever else is planned."""
        value = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
        return value % self.count == self.index - 1


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
