"""What the launcher and its driver say to each other: one JSON object a line over a socket."""

from __future__ import annotations

import os

from compilewatch.launchers.ray.losses import Flight
from compilewatch.records import Attempt, Environment, Record, Result

OUR_OWN_FAULT = os.EX_SOFTWARE
"""Exit status of a driver after an error that is none of Ray's; Ray itself ends it with 1."""


# --- launcher to driver --------------------------------------------------------------------------


class Connect(Record, frozen=True, kw_only=True, tag="connect"):
    """The first order. See `RayLauncher` for what each is."""

    address: str
    jobs: int
    environments: tuple[str, ...]
    cache: str | None
    memory_limit_bytes: int
    patience_seconds: float


class Describe(Record, frozen=True, kw_only=True, tag="describe"):
    """Answered by `Described`, or `Refused`."""


class Count(Record, frozen=True, kw_only=True, tag="count"):
    """Answered by `Counted`, or `Refused`."""


class Run(Record, frozen=True, kw_only=True, tag="run"):
    """Answered by a `Landed` for each flight, whose number is its place, then by `Done`.

    `digests` say what each environment must be, by name.
    """

    flights: tuple[Flight, ...]
    digests: dict[str, str]
    scratch: str


Order = Connect | Describe | Count | Run


# --- driver to launcher --------------------------------------------------------------------------


class Described(Record, frozen=True, kw_only=True, tag="described"):
    environments: tuple[Environment, ...]


class Counted(Record, frozen=True, kw_only=True, tag="counted"):
    jobs: int


class Submitted(Record, frozen=True, kw_only=True, tag="submitted"):
    """The cluster has this flight from here on."""

    number: int


class Lost(Record, frozen=True, kw_only=True, tag="lost"):
    """The cluster has this flight no more, and has not answered it; `attempts` are all so far."""

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
    """Nothing new; sent so that silence means trouble."""


class Refused(Record, frozen=True, kw_only=True, tag="refused"):
    """A LauncherError; the order is dealt with."""

    reason: str


Report = Described | Counted | Submitted | Lost | Landed | Done | Pulse | Refused
