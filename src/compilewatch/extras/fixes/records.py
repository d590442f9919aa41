"""What is tried against graph breaks, what became of it, and the fix that was verified."""

from enum import StrEnum

import msgspec

from compilewatch.records import GraphBreak, Record, Request, Target

FIXES_VERSION = 1
"""The version of what `fixes.jsonl` and `--json` contain."""

LATE = "the verification ends"
"""The step of a verification that did not end in time: on another day it may."""

RECOMPILED = "recompiled_"
"""How the code of a line begins that needs a compilation for another size."""

SCRIPT_FILE = "verify.py"
REGIONS_FILE = "regions.json"
"""The artifact of a search for regions: a list of `Region` as JSON."""


class FixKind(StrEnum):
    """What a change touches, least intrusive first."""

    SETTING = "setting"
    USAGE = "usage"
    ARGUMENT = "argument"
    FUNCTION = "function"
    REWRITE = "rewrite"


class Edit(Record, frozen=True, kw_only=True):
    """Complete lines of a function of a library, from `line` on, and the lines in their place.

    `file` is relative to the folder of packages, `path` the function in its module. Where the new
    lines choose between two values, `branches` has each choice: its name, the old lines with this
    branch forced, and the new ones.
    """

    file: str
    path: str
    line: int
    old: str
    new: str
    branches: tuple[tuple[str, str, str], ...] = ()


class FixChange(Record, frozen=True, kw_only=True):
    """One change around a call of a model, as Python source that is run and printed as it is.

    `lines` are statements in which `stack` is an `ExitStack` that holds the change in force,
    `model` the module, `args` and `kwargs` (a dict that may be changed) the arguments of its call,
    and `options` the dict of keyword arguments of `torch.compile`. `imports` are the statements
    that they need and `definitions` functions that they call. A rewrite has its `edits`. With
    `once`, what a function does besides its tensors is done when the model is compiled, and not at
    each call. `drops` names outputs that the model no longer returns. `functions` (`module:path`)
    and `attributes` are what it replaces. `holds_if` are conditions that no script can try, a short
    sentence each.
    """

    name: str
    kind: FixKind
    summary: str
    lines: tuple[str, ...]
    imports: tuple[str, ...] = ()
    definitions: tuple[str, ...] = ()
    edits: tuple[Edit, ...] = ()
    once: bool = False
    drops: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    holds_if: tuple[str, ...] = ()


class FixTrial(Record, frozen=True, kw_only=True):
    """What Dynamo did with a model under some changes. `breaks` is None where it failed."""

    changes: tuple[str, ...]
    status: str
    detail: str
    breaks: int | None
    seconds: float
    error: str = ""


class VerificationStep(Record, frozen=True, kw_only=True):
    """One requirement of the verification, and what was found."""

    name: str
    passed: bool
    detail: str = ""


class Verification(Record, frozen=True, kw_only=True):
    """What the script of plain PyTorch found, in a separate process.

    `breaks`, `graphs`, `operators` (those that graphs run) and `compilations` are counted without
    and with the fix; the compilations are those of four calls that alternate between two
    shapes, and None without the fix if each shape is compiled once with it; of a fix for other
    sizes those of ten calls of five sizes.
    `single_graph` says that `fullgraph=True` accepted the model for both shapes. `tried` says what
    the script tried, and `holds_if` under which conditions its results hold, a short sentence each.
    """

    steps: tuple[VerificationStep, ...]
    single_graph: bool = False
    breaks: tuple[int, int] = (0, 0)
    graphs: tuple[int, int] = (0, 0)
    operators: tuple[int, int] = (0, 0)
    compilations: tuple[int | None, int] = (None, 0)
    tried: tuple[str, ...] = ()
    holds_if: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        return bool(self.steps) and all(step.passed for step in self.steps)

    @property
    def failure(self) -> str:
        """The first requirement that was not met; empty if all were."""
        failed = next((step for step in self.steps if not step.passed), None)
        return f"{failed.name}: {failed.detail}" if failed is not None else ""


class Rejection(Record, frozen=True, kw_only=True):
    """Changes that Dynamo accepted and the verification did not."""

    changes: tuple[str, ...]
    reason: str


class FixCost(Record, frozen=True, kw_only=True):
    """Seconds of a call in eager mode, and compiled by Inductor without the fix and with it.

    Medians of interleaved measurements, with one thread, for the first shape of the script; in mode
    train with a backward. None where the compiler raises an error.
    """

    eager: float | None
    without: float | None
    with_fix: float | None = msgspec.field(name="with")


class Region(Record, frozen=True, kw_only=True):
    """A submodule that is one graph by itself, with its share of the model's operators."""

    name: str
    kind: str
    share: float


class FixStatus(StrEnum):
    """What is known of a model with graph breaks.

    `verified`: a single graph; `improves`: fewer graph breaks, verified too; `captured`: Dynamo
    captures a single graph under changes that the script rejected; `nothing`: no change helps;
    `no_break`: there is nothing to fix; `no_verdict`: the model did not break, or could not be
    evaluated, when it was searched; `not_searched`: no search of a run has come to it.
    """

    VERIFIED = "verified"
    IMPROVES = "improves"
    CAPTURED = "captured"
    NOTHING = "nothing"
    NO_BREAK = "no_break"
    NO_VERDICT = "no_verdict"
    NOT_SEARCHED = "not_searched"


IN_VAIN = frozenset({FixStatus.NOTHING, FixStatus.CAPTURED, FixStatus.IMPROVES})
"""A search that ended so has left graph breaks, which it would hardly remove from other models."""


class Fix(Record, frozen=True, kw_only=True):
    """The result of a search for one model.

    `breaks` are those of the model as it is and `left` those that remain. `code` is the context
    manager to paste, `patch` its rewrites as a unified diff, `script` what verified it: plain
    PyTorch, complete. `trials` are all evaluations in order, `rejections` what the script did not
    accept. `cost` is measured with `--cost` only. `limit` says which limit ended the search, and is
    empty if it came to its end.
    """

    model: str
    target: str
    status: FixStatus
    detail: str = ""
    breaks: tuple[GraphBreak, ...] = ()
    left: tuple[GraphBreak, ...] = ()
    changes: tuple[FixChange, ...] = ()
    code: str = ""
    patch: str = ""
    script: str = ""
    verification: Verification | None = None
    trials: tuple[FixTrial, ...] = ()
    rejections: tuple[Rejection, ...] = ()
    regions: tuple[Region, ...] = ()
    cost: FixCost | None = None
    limit: str = ""
    seconds: float = 0.0
    version: int = FIXES_VERSION

    @property
    def holds_if(self) -> tuple[str, ...]:
        """The conditions of the changes and of the script, each once."""
        of_changes = [text for change in self.changes for text in change.holds_if]
        of_script = self.verification.holds_if if self.verification is not None else ()
        return tuple(dict.fromkeys([*of_changes, *of_script]))

    @property
    def removed(self) -> frozenset[str]:
        """The fingerprints of the graph breaks that the verified changes remove."""
        if self.verification is None:
            return frozenset()
        left = {graph_break.fingerprint for graph_break in self.left}
        return frozenset(graph_break.fingerprint for graph_break in self.breaks) - left

    def to_json(self) -> str:
        """Return the complete record as JSON."""
        return msgspec.json.encode(self).decode()

    def __str__(self) -> str:
        from compilewatch.extras.fixes.text import fix_panel  # which imports this module
        from compilewatch.report.terminal import as_text

        return as_text(fix_panel(self))


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
    reached one. `script_file` is the path of the script from the run's folder; that of `fix` is
    empty. `reused_from` is the run that it was taken from.
    """

    key: str
    search: str
    max_evaluations: int
    max_seconds: float
    model: str
    target: Target
    origin: FixOrigin
    fix: Fix
    reused_from: str = ""
    script_file: str = ""
    schema_version: int = FIXES_VERSION


REDUCE_SECONDS = 60.0
"""How long a file is made smaller; four times that if it has more lines than wanted."""

CHOICE_SECONDS = 60.0
"""How long candidates are tried until one shows exactly the graph break."""

FRESH_SECONDS = 120.0
"""How long the file may take in a fresh process."""


MinimalOrder = tuple[Request, str | None, float, str, bool]
"""The request, which graph break, the seconds of the reduction, the reducer, whether for an issue.

The reducer is the file of pysource_minimize in the parent, which created environments do not have.
"""


MinimalReproducer = tuple[str, str]
"""What a worker made of one graph break: a file, or the draft of an issue, and a note.

The text is empty if no file shows the graph break, and then the note says why; otherwise it says in
one line what the file shows in a fresh process.
"""
