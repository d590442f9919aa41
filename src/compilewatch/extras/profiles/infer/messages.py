"""The messages between a profile and the processes that it measures, as JSON lines.

A profile talks to one profiling server per environment. The server forks a *subject* for each
target and batch size: a process with one built model. It passes each order on to its subject and
sends back exactly one reply, `SubjectFailed` if the subject raised an error, ended or took too
long. Only one subject works at a time, so that rounds of several targets are in turns; the others
wait.
"""

from __future__ import annotations

from compilewatch.extras.profiles.infer.records import Memory, OpStat, ProfileFailure
from compilewatch.records import (
    Environment,
    GraphBreak,
    Numerics,
    Record,
    Request,
    TensorSummary,
)

TRACE_FILE = "trace.json"
STACKS_FILE = "stacks.txt"
TEXTS_FILE = "texts.json"

# --- orders --------------------------------------------------------------------------------------


class ProfileCommand(Record, frozen=True, kw_only=True):
    """Base of all orders: for the subject with this number, with a limit for the reply."""

    subject: int
    deadline_seconds: float = 300.0


class Prepare(ProfileCommand, frozen=True, kw_only=True, tag="prepare"):
    """Start a subject in `folder`: build the model and its inputs, and make one call in eager mode.

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


class FirstCall(ProfileCommand, frozen=True, kw_only=True, tag="first_call"):
    """Compile, make the first call, and then `warmup` more."""

    warmup: int = 3


class Measure(ProfileCommand, frozen=True, kw_only=True, tag="measure"):
    """One round: `runs` calls, fewer if `seconds` are over; at least one."""

    runs: int
    seconds: float


class MeasureMemory(ProfileCommand, frozen=True, kw_only=True, tag="memory"):
    """The peak memory of one call alone, and how busy calls keep a CUDA device."""


class Compare(ProfileCommand, frozen=True, kw_only=True, tag="compare"):
    """Compare the numbers of compiled code with those of eager mode."""


class TimedSegment(ProfileCommand, frozen=True, kw_only=True, tag="segment"):
    """Where calls spend their time, from a trace of `calls` calls."""

    calls: int


class Trace(ProfileCommand, frozen=True, kw_only=True, tag="trace"):
    """Write `trace.json` and `stacks.txt` of `calls` calls into the folder of the subject."""

    calls: int


class Recompile(ProfileCommand, frozen=True, kw_only=True, tag="recompile"):
    """Drop the compiled code and make a first call again, from caches on disk that are filled."""


class Generate(ProfileCommand, frozen=True, kw_only=True, tag="generate"):
    """Generate text `runs` times: a call over the prompt, then `tokens` calls of one token each."""

    tokens: int
    runs: int


class Classify(ProfileCommand, frozen=True, kw_only=True, tag="classify"):
    """Predict the classes of rows `start` to `stop` of the texts in `texts.json`."""

    start: int
    stop: int


class End(ProfileCommand, frozen=True, kw_only=True, tag="end"):
    """End the subject."""


AnyOrder = (
    Prepare
    | FirstCall
    | Measure
    | MeasureMemory
    | Compare
    | TimedSegment
    | Trace
    | Recompile
    | Generate
    | Classify
    | End
)

# --- replies -------------------------------------------------------------------------------------


class ProfileServerReady(Record, frozen=True, kw_only=True, tag="ready"):
    """The server has imported torch and can start subjects."""

    environment: Environment


class Prepared(Record, frozen=True, kw_only=True, tag="prepared"):
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


class Called(Record, frozen=True, kw_only=True, tag="called"):
    seconds: float
    graphs: int | None = None
    breaks: tuple[GraphBreak, ...] | None = None


class Measured(Record, frozen=True, kw_only=True, tag="measured"):
    wall_seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...]


class Used(Record, frozen=True, kw_only=True, tag="used"):
    """`device_note` says why the utilisation of a CUDA device is not known."""

    memory: Memory
    device_utilization: float | None = None
    device_note: str = ""


class Compared(Record, frozen=True, kw_only=True, tag="compared"):
    numerics: Numerics


class Segmented(Record, frozen=True, kw_only=True, tag="segmented"):
    """Exclusive seconds by compile id and kind, over all `calls` together, with their total.

    The compile id "" stands for what is in no compiled frame. The kinds are `graph`, `guard`,
    `eager` and `python`. `ends` names the break (by its index in `breaks`) at which the code of a
    compile id ends.
    """

    calls: int
    total_seconds: float
    seconds: dict[str, dict[str, float]]
    breaks: tuple[GraphBreak, ...] = ()
    ends: dict[str, int] = {}


class TracedCall(Record, frozen=True, kw_only=True, tag="traced"):
    """`wall_seconds` is the duration of the traced calls; times in `operators` are for all."""

    operators: tuple[OpStat, ...]
    files: tuple[str, ...]
    wall_seconds: float


class Generated(Record, frozen=True, kw_only=True, tag="generated"):
    """Seconds of each prompt, and of each token (mean of one text), with CPU times."""

    prompt_tokens: int
    prefill_wall_seconds: tuple[float, ...]
    prefill_cpu_seconds: tuple[float, ...]
    decode_wall_seconds: tuple[float, ...]
    decode_cpu_seconds: tuple[float, ...]


class Classified(Record, frozen=True, kw_only=True, tag="classified"):
    classes: tuple[int, ...]
    seconds: float


class Ended(Record, frozen=True, kw_only=True, tag="ended"):
    pass


class SubjectFailed(Record, frozen=True, kw_only=True, tag="failed"):
    failure: ProfileFailure


Reply = (
    ProfileServerReady
    | Prepared
    | Called
    | Measured
    | Used
    | Compared
    | Segmented
    | TracedCall
    | Generated
    | Classified
    | Ended
    | SubjectFailed
)
