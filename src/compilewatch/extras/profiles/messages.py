"""The messages between profiles and the processes that they measure, as JSON lines.

A profile talks to one profiling server per environment. The server forks a *subject* for each job:
a process with one built model, on one target at one batch size. Each order names a step of its
subject, and gets exactly one reply. Only one subject works at a time, so that the rounds of several
targets are interleaved; the others wait.
"""

from __future__ import annotations

from typing import Any

import msgspec

from compilewatch.extras.profiles.records import Memory, ProfileFailure
from compilewatch.records import GraphBreak, Record, Request, TensorSummary

TRACE_FILE = "trace.json"
STACKS_FILE = "stacks.txt"
TEXTS_FILE = "texts.json"

PREPARE = "prepare"
"""The step that starts a subject; its order has the job."""

END = "end"
"""The step that ends a subject."""


class SubjectJob(Record, frozen=True, kw_only=True):
    """What a subject is: a model, in `folder`, on one target at one batch size.

    `target` is `eager`, `inductor` or `xla`, `device` is `cpu` or `cuda`. `full_size` builds the
    model in the size of its configuration. `settings` are values of `torch._dynamo.config`.
    """

    folder: str
    request: Request
    target: str
    batch_size: int
    device: str = "cpu"
    dtype: str = "float32"
    threads: int = 1
    max_length: int | None = None
    full_size: bool = True
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


class StepReply(Record, frozen=True, kw_only=True):
    """What the step returned; `failure` if it raised an error, or if the subject ended."""

    value: msgspec.Raw = msgspec.Raw(b"null")
    failure: ProfileFailure | None = None


class Prepared(Record, frozen=True, kw_only=True):
    """`batch_size` is that of the inputs; `is_fixed` says that no other one can be made.

    `labels` are the names of the classes of a classifier, by index. `device` is the name of a CUDA
    device, and `cpu` otherwise.
    """

    load_seconds: float
    parameters: int
    trainable_parameters: int
    model_bytes: int
    inputs: tuple[TensorSummary, ...]
    strategy: str
    batch_size: int
    is_fixed: bool = False
    tokens_per_sample: int | None = None
    generates: bool = False
    labels: tuple[str, ...] = ()
    device: str = "cpu"


class FirstCall(Record, frozen=True, kw_only=True):
    """The first call, which compiles."""

    seconds: float
    graphs: int | None = None
    breaks: tuple[GraphBreak, ...] | None = None


class Round(Record, frozen=True, kw_only=True):
    """The times of the calls of one round; CPU times are those of all threads."""

    wall_seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...]


class MemoryUse(Record, frozen=True, kw_only=True):
    """`device_note` says why the utilisation of a CUDA device is not known."""

    memory: Memory
    device_utilization: float | None = None
    device_note: str = ""


class Generated(Record, frozen=True, kw_only=True):
    """The times of each prompt, and of each token (mean of one text)."""

    prompt_tokens: int
    prefill: Round
    decode: Round


class NeuronCapture(Record, frozen=True, kw_only=True):
    """Profile some training steps of a model with torch_neuronx, in its environment.

    The fields from `port` on are the arguments of `torch_neuronx.experimental.profiler.profile`.
    """

    request: Request
    steps: int = 10
    port: int = 9012
    profile_type: str = "trace"
    ms_duration: int = 15000
    neuron_tensorboard_plugin_dir: str = "logs/plugins/neuron"
    delete_working: bool = True


class CapturedProfile(Record, frozen=True, kw_only=True):
    """`files` are below the folder of the capture; `blocks` counts the named blocks that ran."""

    api: str
    steps: int
    blocks: dict[str, int]
    files: tuple[str, ...]
