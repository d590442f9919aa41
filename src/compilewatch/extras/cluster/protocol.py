"""Messages between the launcher and its driver: one JSON object per line over a socket."""

from __future__ import annotations

import os

from compilewatch.extras.cluster.losses import Flight
from compilewatch.records import Attempt, Environment, Record, Result

OUR_OWN_FAULT = os.EX_SOFTWARE
"""Exit status of a driver after an error that is not Ray's; Ray itself ends it with 1."""


# --- launcher to driver --------------------------------------------------------------------------


class Connect(Record, frozen=True, kw_only=True, tag="connect"):
    """The first order. `RayLauncher` describes the fields."""

    address: str
    jobs: int
    environments: tuple[str, ...]
    cache: str | None
    memory_limit_bytes: int
    node_timeout_seconds: float


class Describe(Record, frozen=True, kw_only=True, tag="describe"):
    """The response is `Described` or `ClusterFailed`."""


class Count(Record, frozen=True, kw_only=True, tag="count"):
    """The response is `Counted` or `ClusterFailed`."""


class ClusterBatch(Record, frozen=True, kw_only=True, tag="run"):
    """The response is a `Landed` for each flight, numbered by its position, and then `Done`.

    `digests` maps the name of each environment to the digest that it must have.
    """

    flights: tuple[Flight, ...]
    digests: dict[str, str]
    scratch: str


Order = Connect | Describe | Count | ClusterBatch


# --- driver to launcher --------------------------------------------------------------------------


class Described(Record, frozen=True, kw_only=True, tag="described"):
    environments: tuple[Environment, ...]


class Counted(Record, frozen=True, kw_only=True, tag="counted"):
    jobs: int


class Submitted(Record, frozen=True, kw_only=True, tag="submitted"):
    """The request is submitted to the cluster."""

    number: int


class Lost(Record, frozen=True, kw_only=True, tag="lost"):
    """The cluster lost the request without a result; `attempts` are all losses so far."""

    number: int
    attempts: tuple[Attempt, ...]


class Landed(Record, frozen=True, kw_only=True, tag="landed"):
    """`artifacts` is a folder below scratch, or None."""

    number: int
    result: Result
    artifacts: str | None


class Done(Record, frozen=True, kw_only=True, tag="done"):
    pass


class Pulse(Record, frozen=True, kw_only=True, tag="pulse"):
    """Nothing new; sent regularly so that silence means that the driver hangs."""


class ClusterFailed(Record, frozen=True, kw_only=True, tag="failed"):
    """A LauncherError, which ends the order."""

    reason: str


Report = Described | Counted | Submitted | Lost | Landed | Done | Pulse | ClusterFailed
