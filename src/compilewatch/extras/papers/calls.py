"""Calls to a model: looked up in the ledger, held to the budget, recorded before and after.

A line `started` is on disk before a request is sent and a line with the reply before it is used, so
that a process that is killed loses nothing that was paid for and repeats no finished call.
"""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Protocol

import msgspec
from msgspec import Meta

from compilewatch import data
from compilewatch.errors import ProviderError, UsageError
from compilewatch.extras.papers import CallError, Prompt, Provider, Reply
from compilewatch.extras.papers.prompts import PaperRules, call_key
from compilewatch.extras.papers.records import (
    CallState,
    FindingClass,
    ModelCall,
    PaperFinding,
    PipelineStage,
)
from compilewatch.extras.papers.text import estimate_tokens
from compilewatch.records import now
from compilewatch.retry import retrying

MILLION = 1_000_000


class ModelPrice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row: US dollars per million tokens of a model. `model` is a part of the model's id."""

    model: Annotated[str, Meta(min_length=1)]
    input_usd: Annotated[float, Meta(ge=0)]
    output_usd: Annotated[float, Meta(ge=0)]
    cache_read_usd: Annotated[float, Meta(ge=0)] = 0.0
    cache_write_usd: Annotated[float, Meta(ge=0)] = 0.0
    date: datetime.date
    source: Annotated[str, Meta(min_length=1)]

    def cost(self, reply: Reply) -> float:
        """US dollars for a reply."""
        return (
            reply.input_tokens * self.input_usd
            + reply.output_tokens * self.output_usd
            + reply.cache_read_tokens * self.cache_read_usd
            + reply.cache_write_tokens * self.cache_write_usd
        ) / MILLION

    def most(self, input_tokens: int, max_tokens: int) -> float:
        """The most that a request can cost, in US dollars."""
        dearest = max(self.input_usd, self.cache_write_usd)
        return (input_tokens * dearest + max_tokens * self.output_usd) / MILLION


class ModelPrices(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`papers/prices.toml`."""

    schema_version: Annotated[int, Meta(ge=1, le=1)]
    price: tuple[ModelPrice, ...] = ()


def price_of(file: Path, model: str) -> ModelPrice | None:
    """The newest price whose `model` is part of the id, the longest first; None without a row.

    A fitting row of a project's own file applies, if there is any. Ids of inference profiles
    (`us.`…) contain the id of their model. Raises ConfigError.
    """
    files = data.read(file, data.MODEL_PRICES, ModelPrices)
    rows = ([row for row in file.price if row.model in model] for file in files)
    fitting = next(filter(None, rows), [])
    return max(fitting, key=lambda row: (len(row.model), row.date), default=None)


MAX_ATTEMPTS = 8
FIRST_WAIT_SECONDS = 5.0
LONGEST_WAIT_SECONDS = 120.0

OVERHEAD_TOKENS = 1_000
"""Tokens of a request beside its texts: the schema, and what the service adds."""


class Recorder(Protocol):
    """The ledger; see `extras.papers.store.Ledger`."""

    def finished(self, key: str) -> ModelCall | None: ...

    def entries(self) -> tuple[ModelCall, ...]: ...

    def begin(self, call: ModelCall) -> ModelCall: ...

    def end(self, call: ModelCall) -> ModelCall: ...


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What the papers of a run may use, with what they used in earlier runs. None: no limit.

    `max_usd_per_paper` and `max_tokens_per_paper` limit each paper, the others all of them.
    """

    max_usd: float | None = None
    max_tokens: int | None = None
    max_usd_per_paper: float | None = None
    max_tokens_per_paper: int | None = None
    max_repairs: int = 3


class NoReplyError(Exception):
    """There is no reply, for a reason that is not in the reply; `finding` says why."""

    def __init__(self, finding: PaperFinding) -> None:
        super().__init__(finding.evidence)
        self.finding = finding


class _TransientCallError(Exception):
    wait_seconds: float | None = None


@dataclass(kw_only=True)
class Caller:
    """Makes calls for the papers of one run; safe to use from several threads.

    A request is in the ledger with the most that it can use before it is sent, so that requests of
    several papers at a time cannot exceed a budget together.
    """

    ledger: Recorder
    provider: Provider
    rules: PaperRules
    price: ModelPrice | None
    budget: Budget
    papers: frozenset[str]
    run: str
    first_wait_seconds: float = FIRST_WAIT_SECONDS
    attempts: int = MAX_ATTEMPTS
    sleep: Callable[[float], None] = time.sleep
    requests: int = field(default=0, init=False)
    _settled: threading.Condition = field(default_factory=threading.Condition, init=False)
    _open: dict[int, ModelCall] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Raises UsageError for a limit in dollars on a model without a price."""
        limited = (self.budget.max_usd, self.budget.max_usd_per_paper) != (None, None)
        if limited and self.price is None:
            raise UsageError(
                f"no price of {self.provider.model} is known, so no limit in dollars can hold: "
                "add a row to inputs/papers/prices.toml"
            )

    def key(self, prompt: Prompt, parent: str = "") -> str:
        """The key of a call in the ledger."""
        return call_key(prompt, self.provider.model, self.provider.name, self.rules, parent)

    def call(self, prompt: Prompt, *, stage: PipelineStage, parent: str = "") -> ModelCall:
        """The finished call for a prompt, from the ledger or new.

        Raises NoReplyError, or ProviderError if the model cannot be used at all.
        """
        key = self.key(prompt, parent)
        if (known := self.ledger.finished(key)) is not None:
            return known
        retry = retrying(
            _TransientCallError,
            attempts=self.attempts,
            first_wait_seconds=self.first_wait_seconds,
            longest_wait_seconds=LONGEST_WAIT_SECONDS,
            sleep=self.sleep,
        )
        try:
            return retry(self._request, prompt, key, stage)
        except _TransientCallError as error:
            cause = error.__cause__
            code = cause.code if isinstance(cause, CallError) else ""
            kind = FindingClass.THROTTLED if "Throttl" in code else FindingClass.UNAVAILABLE
            evidence = f"no reply after {self.attempts} requests: {error}"
            raise NoReplyError(PaperFinding(kind=kind, stage=stage, evidence=evidence)) from None

    def _request(self, prompt: Prompt, key: str, stage: PipelineStage) -> ModelCall:
        tokens = estimate_tokens(prompt.system + prompt.text) + OVERHEAD_TOKENS
        tokens += estimate_tokens(msgspec.json.encode(prompt.schema).decode())
        most = self.price.most(tokens, prompt.max_tokens) if self.price else None
        reserved = self._entry(prompt, key, most, tokens)
        with self._settled:
            while (over := self._over(reserved, stage)) is not None:
                if not self._open or self._over(reserved, stage, among=self._ended()) is not None:
                    raise over
                self._settled.wait()  # a request in work may use less than was reserved for it
            entry = self.ledger.begin(reserved)
            self._open[entry.entry] = entry
            self.requests += 1
        try:
            return self.ledger.end(self._finished(entry, self.provider.converse(prompt)))
        except CallError as error:
            self.ledger.end(_failed(entry, error))
            if error.transient:
                raise _TransientCallError(str(error)) from error
            # No paper could be processed with it, so this is no finding about a paper.
            raise ProviderError(str(error)) from None
        finally:
            with self._settled:
                del self._open[entry.entry]
                self._settled.notify_all()

    def _entry(self, prompt: Prompt, key: str, usd: float | None, input_tokens: int) -> ModelCall:
        """The line `started`, with the most that the request can use."""
        return ModelCall(
            entry=0,
            key=key,
            state=CallState.STARTED,
            paper=prompt.labels["paper"],
            role=prompt.labels["role"],
            provider=self.provider.name,
            model=self.provider.model,
            at=now(),
            run=self.run,
            usd=usd,
            input_tokens=input_tokens,
            output_tokens=prompt.max_tokens,
            scripted=self.provider.scripted,
        )

    def _finished(self, entry: ModelCall, reply: Reply) -> ModelCall:
        return msgspec.structs.replace(
            entry,
            state=CallState.FINISHED,
            at=now(),
            usd=self.price.cost(reply) if self.price else None,
            input_tokens=reply.input_tokens,
            output_tokens=reply.output_tokens,
            cache_read_tokens=reply.cache_read_tokens,
            cache_write_tokens=reply.cache_write_tokens,
            request_id=reply.request_id,
            stop_reason=reply.stop_reason,
            latency_seconds=reply.latency_seconds,
            reply=reply.text,
        )

    def _ended(self) -> list[ModelCall]:
        return [entry for entry in self.ledger.entries() if entry.entry not in self._open]

    def _over(
        self, reserved: ModelCall, stage: PipelineStage, *, among: list[ModelCall] | None = None
    ) -> NoReplyError | None:
        """Why a request could exceed a budget, with what is used `among` some entries (all)."""
        entries = self.ledger.entries() if among is None else among
        used = [entry for entry in entries if entry.paper in self.papers]
        of_paper = [entry for entry in used if entry.paper == reserved.paper]
        budget, usd, tokens = self.budget, reserved.usd or 0.0, _tokens([reserved])
        limits = (
            (budget.max_usd, used, ""),
            (budget.max_usd_per_paper, of_paper, " for this paper"),
        )
        for most, mine, whose in limits:
            if most is not None and (sum_usd := _usd(mine)) + usd > most:
                evidence = (
                    f"${sum_usd:.4f} of ${most:g}{whose} are used, and this may cost ${usd:.4f}"
                )
                return _over(stage, evidence)
        limited = (
            (budget.max_tokens, used, ""),
            (budget.max_tokens_per_paper, of_paper, " for this paper"),
        )
        for limit, mine, whose in limited:
            if limit is not None and (total := _tokens(mine)) + tokens > limit:
                evidence = f"{total:,} of {limit:,} tokens{whose} are used"
                return _over(stage, f"{evidence}, and this may need {tokens:,}")
        return None


def _failed(entry: ModelCall, error: CallError) -> ModelCall:
    """A request that may have been charged keeps the most that it can use."""
    ended = msgspec.structs.replace(
        entry,
        state=CallState.FAILED,
        at=now(),
        error_code=error.code,
        request_id=error.request_id,
    )
    if error.paid:
        return ended
    return msgspec.structs.replace(ended, usd=0.0, input_tokens=0, output_tokens=0)


def _usd(entries: Iterable[ModelCall]) -> float:
    return sum(entry.usd or 0.0 for entry in entries)


def _tokens(entries: Iterable[ModelCall]) -> int:
    return sum(
        e.input_tokens + e.output_tokens + e.cache_read_tokens + e.cache_write_tokens
        for e in entries
    )


def _over(stage: PipelineStage, evidence: str) -> NoReplyError:
    return NoReplyError(PaperFinding(kind=FindingClass.BUDGET, stage=stage, evidence=evidence))
