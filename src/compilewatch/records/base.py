"""What all records share: versions, the base class, and enumerations."""

from __future__ import annotations

from enum import StrEnum

import msgspec

SCHEMA_VERSION = 1
"""Version of the files that have no version of their own below; see docs/formats.md."""

RESULT_VERSION = 2
"""Version of the lines of `results.jsonl`."""

RUN_VERSION = 2
"""Version of `run.json`."""

HARNESS_VERSION = 1
"""Raised by hand when a change of compilewatch can change a result; it is part of every key."""


class Status(StrEnum):
    """What happened to a request; `Phase` says where."""

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
    """The phases of a child, in order. A child writes the phase before it starts it."""

    SETUP = "setup"
    CREATE = "create"
    INPUTS = "inputs"
    EAGER = "eager"
    COMPILE = "compile"
    COMPARE = "compare"
    PROFILE = "profile"
    DONE = "done"


NOT_RUN = frozenset({Status.SKIPPED, Status.UNSUPPORTED})
"""Statuses of requests that neither passed nor failed."""


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


class Dtype(StrEnum):
    """The type of weights and inputs; `config` is what the model's configuration says."""

    CONFIG = "config"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class Variants(StrEnum):
    """Which of a model's input variants are evaluated.

    `main`: all media at once. `all`: also text alone, and text with one medium. `all+decode`: also
    one token after a prefill, with a dynamic and with a static cache.
    """

    MAIN = "main"
    ALL = "all"
    ALL_DECODE = "all+decode"


class Part(StrEnum):
    """What part of a Hub repository a model is.

    `whole`: what its users run. `component`: one model of a pipeline. `transformers`: the model of
    Transformers without what another library adds to it. `base`: the base model of an adapter,
    without the adapter. `base_component`: one model of the pipeline that an adapter of diffusers is
    for, without the adapter. `original`: the class of Transformers with the sizes that an original
    `params.json` gives. `port`: the same architecture in a library that is built here, where the
    repository has code of its own or files for another library.
    """

    WHOLE = "whole"
    COMPONENT = "component"
    TRANSFORMERS = "transformers"
    BASE = "base"
    BASE_COMPONENT = "base_component"
    ORIGINAL = "original"
    PORT = "port"


class Quantization(StrEnum):
    """How the weights of a checkpoint are quantised, as its configuration says."""

    GPTQ = "gptq"
    AWQ = "awq"
    BITSANDBYTES_4BIT = "bitsandbytes-4bit"
    BITSANDBYTES_8BIT = "bitsandbytes-8bit"
    FP8 = "fp8"
    COMPRESSED_TENSORS = "compressed-tensors"
    TORCHAO = "torchao"
    OTHER = "other"


class AttemptCode(StrEnum):
    """Why a request ran again.

    `fake_unsupported`: the model reads values, which fake tensors do not have. `transient`: its
    process or server ended for an unknown reason. `resumed`: it timed out, crashed or ran out of
    memory in an earlier part of the run. The other codes are failures of a cluster.
    """

    FAKE_UNSUPPORTED = "fake_unsupported"
    TRANSIENT = "transient"
    RESUMED = "resumed"
    NODE_LOST = "node_lost"
    WORKER_LOST = "worker_lost"
    CONNECTION_LOST = "connection_lost"
    NODE_OUT_OF_MEMORY = "node_out_of_memory"


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
    """Base class of all records: immutable, with keyword-only arguments."""
