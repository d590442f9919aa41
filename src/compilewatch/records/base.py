"""What all records share: their versions, their base and the words of few values."""

from __future__ import annotations

from enum import StrEnum

import msgspec

SCHEMA_VERSION = 1
"""Version of every file written from these structs; see docs/formats.md."""

HARNESS_VERSION = 1
"""Bumped by hand when a change of ours can change an answer: part of every request key."""


class Status(StrEnum):
    """What became of a request; `Phase` says where."""

    PASS = "pass"
    GRAPH_BREAK = "graph_break"
    MISMATCH = "mismatch"
    ERROR = "error"
    TIMEOUT = "timeout"
    OOM = "oom"
    CRASHED = "crashed"
    SKIPPED = "skipped"
    UNSUPPORTED = "unsupported"


class Phase(StrEnum):
    """Where a child is, in order. Written before each step is begun."""

    SETUP = "setup"
    CREATE = "create"
    INPUTS = "inputs"
    EAGER = "eager"
    COMPILE = "compile"
    COMPARE = "compare"
    PROFILE = "profile"
    DONE = "done"


class Mode(StrEnum):
    EVAL = "eval"
    TRAIN = "train"


class Tier(StrEnum):
    """`fake`: fake tensors, no weights, any size. `real`: real tensors at reduced size."""

    AUTO = "auto"
    FAKE = "fake"
    REAL = "real"


class Depth(StrEnum):
    """`full`: the configuration's own depth. `reduced`: one of each kind of layer."""

    FULL = "full"
    REDUCED = "reduced"


class ChangeKind(StrEnum):
    REGRESSION = "regression"
    FIXED = "fixed"
    NEW = "new"
    NOT_SELECTED = "not_selected"
    PENDING = "pending"
    MISSING = "missing"
    GONE = "gone"
    NEWLY_TESTED = "newly_tested"
    NO_LONGER_TESTED = "no_longer_tested"


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """Base of all records: immutable, keyword-only."""
