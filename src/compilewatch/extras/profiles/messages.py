"""Between a profile and the processes that it measures: orders and replies, as JSON lines."""

from typing import Any

import msgspec

from compilewatch import records

ORDERS, REPLIES = "orders", "replies"
"""The named pipes in the folder of a subject."""

TRACE_FILE = "trace.json"
STACKS_FILE = "stacks.txt"
TEXTS_FILE = "texts.json"


class Order(records.Record, frozen=True, kw_only=True):
    """A step for a subject, a method of `worker.subject.ProfiledModel`, and its arguments."""

    step: str
    options: dict[str, Any]


class ProfileFailure(records.Record, frozen=True, kw_only=True):
    """Why a step of a profile ended without a value."""

    status: records.Status
    phase: records.Phase
    detail: str


class StepReply(records.Record, frozen=True, kw_only=True):
    """What a step returned; `failure` if it raised an error."""

    value: msgspec.Raw = msgspec.Raw(b"null")
    failure: ProfileFailure | None = None


class Prepared(records.Record, frozen=True, kw_only=True):
    """A built model with its inputs. What a profile says of its model has the same names there.

    `is_fixed` says that no other batch size can be made. `labels` are the names of the classes of a
    classifier, by index. `device` is the name of a CUDA device, and `cpu` otherwise.
    """

    parameters: int
    trainable_parameters: int
    model_bytes: int
    inputs: tuple[records.TensorSummary, ...]
    inputs_strategy: str
    tokens_per_sample: int | None = None
    is_fixed: bool = False
    generates: bool = False
    labels: tuple[str, ...] = ()
    device: str = "cpu"


class Round(records.Record, frozen=True, kw_only=True):
    """The times of the calls of one round; CPU times are those of all threads."""

    wall_seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...]
