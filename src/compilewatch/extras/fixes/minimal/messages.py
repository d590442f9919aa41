"""What the parent asks of a worker for minimal reproducers, and what it gets."""

from __future__ import annotations

from compilewatch.records import GraphBreak, Record, Request

REDUCE_SECONDS = 60.0
"""How long a file is made smaller; four times that if it has more lines than wanted."""

CHOICE_SECONDS = 60.0
"""How long candidates are tried until one shows exactly the graph break."""

FRESH_SECONDS = 120.0
"""How long the file may take in a fresh process."""


class MinimalOrder(Record, frozen=True, kw_only=True):
    """Write minimal reproducers of a model's graph breaks.

    `request` is evaluated with real tensors at reduced depth. `breaks` are graph breaks that an
    earlier evaluation of it found; without any, the model is captured first. `at` is `FILE:LINE`
    (the end of the file's path suffices) or a code, and chooses among them; without it, the first
    one is meant if the model is captured, and all of those given otherwise. `reducer` is the file
    of the parent's package pysource_minimize, which created environments do not have.
    """

    request: Request
    breaks: tuple[GraphBreak, ...] = ()
    at: str | None = None
    seconds: float = REDUCE_SECONDS
    reducer: str = ""


class FreshRun(Record, frozen=True, kw_only=True):
    """What the file did in a process of its own, as a user runs it.

    `code` and `reason` are those that torch printed for the graph break that is most like the
    wanted one; `code` is None if torch printed no graph break. `same_reason` is False if only the
    codes are equal.
    """

    code: str | None
    reason: str = ""
    same_reason: bool = False


class MinimalReproducer(Record, frozen=True, kw_only=True):
    """The outcome for one graph break.

    `source` is the complete file, empty if there is none, and then `failure` says why. `form` is
    the piece of code that the file was made from, `lines` counts its lines without comments and
    empty ones, and `checks` the candidates that were run.
    """

    broken: GraphBreak
    source: str = ""
    form: str = ""
    lines: int = 0
    checks: int = 0
    seconds: float = 0.0
    fresh: FreshRun | None = None
    failure: str = ""

    @property
    def succeeded(self) -> bool:
        """Whether the file shows the same code with the same reason in a fresh process."""
        fresh = self.fresh
        return fresh is not None and fresh.code == self.broken.code and fresh.same_reason


class MinimalOutcome(Record, frozen=True, kw_only=True):
    """The result of an order. `versions` are those of the worker's packages."""

    reproducers: tuple[MinimalReproducer, ...]
    versions: dict[str, str]
