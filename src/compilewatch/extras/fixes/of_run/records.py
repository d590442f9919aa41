"""What `fix --all-of` stores in the folder of a run."""

from __future__ import annotations

from enum import StrEnum

from compilewatch.extras.fixes.records import FIXES_VERSION, Fix
from compilewatch.records import Record, Target


class FixState(StrEnum):
    """What is known of a model and target with graph breaks.

    `verified`: a single graph; `improves`: fewer graph breaks, verified too; `captured`: Dynamo
    captures a single graph under changes that the script rejected; `nothing`: no change helps;
    `no_verdict`: the model did not break, or could not be evaluated, when it was searched;
    `not_searched`: no search has come to it.
    """

    VERIFIED = "verified"
    IMPROVES = "improves"
    CAPTURED = "captured"
    NOTHING = "nothing"
    NO_VERDICT = "no_verdict"
    NOT_SEARCHED = "not_searched"


class FixOrigin(StrEnum):
    """How a fix was found.

    `search`: by a search for this model; `known`: changes that were verified for other models were
    tried; `places`: nothing was tried, because a search on other models with the same graph breaks
    found nothing.
    """

    SEARCH = "search"
    KNOWN = "known"
    PLACES = "places"


class RunFix(Record, frozen=True, kw_only=True):
    """One line of `fixes.jsonl`: what was found for one model and target of a run.

    `key` is that of the request, which covers the model and the versions. `search` is a digest of
    the code that searched and verified: another version of it searches again where nothing was
    verified, and so do larger limits than `max_evaluations` and `max_seconds` where the search
    reached one. `script_file` is the path of the script from the run's folder; that of
    `fix` is empty. `after` names the models whose changes were tried before. `reused_from` is the
    run that it was taken from.
    """

    key: str
    search: str
    max_evaluations: int
    max_seconds: float
    model: str
    target: Target
    state: FixState
    origin: FixOrigin
    fix: Fix
    downloads: int | None = None
    after: tuple[str, ...] = ()
    reused_from: str = ""
    script_file: str = ""
    schema_version: int = FIXES_VERSION
