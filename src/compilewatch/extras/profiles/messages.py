"""The messages between profiles and the processes that they measure, as JSON lines.

A profile talks to one profiling server per environment. The server forks a *subject* for each job:
a process with one built model, on one target at one batch size. Each order names a step of its
subject, and gets exactly one reply. Only one subject works at a time, so that the rounds of several
targets are interleaved; the others wait.
"""

from typing import Any

import msgspec

from compilewatch.extras.profiles.records import InferenceOptions
from compilewatch.records import Phase, Record, Request, Status, TensorSummary

TRACE_FILE = "trace.json"
STACKS_FILE = "stacks.txt"
TEXTS_FILE = "texts.json"

PREPARE = "prepare"
"""The step that starts a subject; its order has the job."""

END = "end"
"""The step that ends a subject."""


class SubjectJob(Record, frozen=True, kw_only=True):
    """What a subject is: a model, in `folder`, on one target at one batch size.

    `target` is `eager`, `inductor` or `xla`. `settings` are values of `torch._dynamo.config`.
    """

    folder: str
    request: Request
    target: str
    batch_size: int
    options: InferenceOptions
    settings: dict[str, bool] = {}


class Order(Record, frozen=True, kw_only=True):
    """A step for the subject with this number: a method of `worker.subject.ProfiledModel`.

    `options` are the arguments of the method, and `deadline_seconds` limits the wait for its reply.
    """

    subject: int
    step: str
    deadline_seconds: float
    options: dict[str, Any] = {}
    job: SubjectJob | None = None


class ProfileFailure(Record, frozen=True, kw_only=True):
    """Why a step of a profile ended without a value."""

    status: Status
    phase: Phase
    detail: str


class StepReply(Record, frozen=True, kw_only=True):
    """What the step returned; `failure` if it raised an error, or if the subject ended."""

    value: msgspec.Raw = msgspec.Raw(b"null")
    failure: ProfileFailure | None = None


class Prepared(Record, frozen=True, kw_only=True):
    """A built model with its inputs. What a profile says of its model has the same names there.

    `is_fixed` says that no other batch size can be made. `labels` are the names of the classes of a
    classifier, by index. `device` is the name of a CUDA device, and `cpu` otherwise.
    """

    parameters: int
    trainable_parameters: int
    model_bytes: int
    inputs: tuple[TensorSummary, ...]
    inputs_strategy: str
    tokens_per_sample: int | None = None
    is_fixed: bool = False
    generates: bool = False
    labels: tuple[str, ...] = ()
    device: str = "cpu"


class Round(Record, frozen=True, kw_only=True):
    """The times of the calls of one round; CPU times are those of all threads."""

    wall_seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...]


class CapturedProfile(Record, frozen=True, kw_only=True):
    """Training steps under Neuron's profiler.

    `files` are below the folder of the capture; `blocks` counts the named blocks that ran.
    """

    api: str
    steps: int
    blocks: dict[str, int]
    files: tuple[str, ...]
