"""Environments, runs, and the differences between runs."""

from __future__ import annotations

from typing import Any

from compilewatch.records.base import HARNESS_VERSION, RUN_VERSION, ChangeKind, Record, Status
from compilewatch.records.requests import Target


class Environment(Record, frozen=True, kw_only=True):
    """A Python interpreter in which a worker can run, as it described itself.

    `cuda` is the release of CUDA that its torch was built for, None for a CPU build.
    """

    name: str
    python_executable: str
    python: str
    torch: str
    torch_git: str
    transformers: str | None
    device: str
    packages: dict[str, str]
    harness_version: int = HARNESS_VERSION
    digest: str = ""
    cuda: str | None = None


class Run(Record, frozen=True, kw_only=True):
    """One sweep: `outputs/<id>/run.json`.

    `settings` are the arguments of the run; `planned` counts every request, and `targets` are
    those that each model is evaluated on; `plan_digest` lets `merge` check that shards belong
    to one plan, and `plan_total` counts the requests of all shards together (None where no plan
    was made). `missing_shards` names the shards that a merged run lacks. `state` is running,
    interrupted, finished, or incomplete: a merged run of which shards are missing.
    """

    id: str
    started_at: str
    source: str
    environments: tuple[Environment, ...]
    planned: int
    plan_digest: str
    schema_version: int = RUN_VERSION
    harness_version: int = HARNESS_VERSION
    finished_at: str | None = None
    state: str = "running"
    settings: dict[str, Any] = {}
    shard: str | None = None
    baseline: str | None = None
    jobs: int = 1
    wall_seconds: float | None = None
    merged_from: tuple[str, ...] = ()
    missing_shards: tuple[str, ...] = ()
    targets: tuple[Target, ...] = ()
    plan_total: int | None = None


class Change(Record, frozen=True, kw_only=True):
    """One difference between a baseline and a run, for one model and target."""

    kind: ChangeKind
    model: str
    target: Target
    before: Status | None
    after: Status | None
    reason: str
    family: str = "unknown"
    downloads: int | None = None
    causes: tuple[str, ...] = ()
