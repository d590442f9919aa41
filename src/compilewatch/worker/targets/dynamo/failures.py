"""Failures under Dynamo: which ones are its verdict, and the record of a compiler's failure."""

import re

import msgspec
from torch._dynamo import exc
from torch.fx.experimental import symbolic_shapes

from compilewatch.contract.failures import causes, error_code, error_record, one_line
from compilewatch.records import ErrorRecord, Status, TargetOutcome, Tier
from compilewatch.worker.subject import Subject
from compilewatch.worker.targets import FakeUnsupportedError, check_device_not_needed
from compilewatch.worker.targets.dynamo import graph_breaks

_REJECTIONS = (
    exc.Unsupported,
    exc.UserError,
    exc.UncapturedHigherOrderOpError,
    exc.FailOnRecompileLimitHit,
    # On a size or value that Dynamo made unknown, in either tier.
    symbolic_shapes.GuardOnDataDependentSymNode,
)
_UNBOUND_SYMBOLS = symbolic_shapes.PendingUnbackedSymbolNotFound.__name__
"""How the message of an internal error of Dynamo begins, which has no cause (torch 2.13 to 2.15),
where a check of the symbols failed that Dynamo itself had made for sizes."""

_NO_FRAMES = "found no compiled frames"
_CONVERT_FRAME = "torch/_dynamo/convert_frame.py"


def compiler_error(error: BaseException) -> ErrorRecord:
    """Return the record of a compiler failure: code, causes, and the line in the model.

    The message starts with the innermost cause: the failure of a backend repeats what it wraps, and
    the cause of a long one would be lost between head and tail.
    """
    record = error_record(error)
    chain = chain_of(error)
    root = chain[-1]
    message = record.message
    if root is not error:
        message = f"{one_line(root, limit=2000)}\n\n{message}"
    frames = graph_breaks.user_stack(getattr(error, "real_stack", None) or ())
    place = graph_breaks.place_of(frames) if frames else None
    names = tuple(type(cause).__name__ for cause in chain)
    return msgspec.structs.replace(
        record,
        message=graph_breaks.portable_text(message),
        code=graph_breaks.classify(message_of(error), names).code,
        file=place.file if place else record.file,
        line=place.line if place else record.line,
        function=place.function if place else record.function,
    )


def chain_of(error: BaseException) -> list[BaseException]:
    """Return the exception and its causes, outermost first, including those within a backend."""
    inner = getattr(error, "inner_exception", None)
    return [*causes(error), *(causes(inner) if inner is not None else ())]


def raise_if_out_of_memory(error: BaseException | None) -> None:
    """Raise if memory ran out, because that says nothing about the model."""
    for cause in chain_of(error) if error is not None else ():
        if error_code(cause) == "out_of_memory":
            raise cause


def raise_unless_settled(subject: Subject, error: BaseException, when: str = "") -> None:
    """Raise if a failure is no verdict: memory ran out, or real tensors or a device are needed."""
    raise_if_out_of_memory(error)
    check_device_not_needed(subject, "\n".join(map(str, chain_of(error))))
    if not is_settled(subject, error):
        raise FakeUnsupportedError(f"{when}{one_line(error)}") from error


def is_settled(subject: Subject, error: BaseException) -> bool:
    """Whether a failure is the compiler's verdict regardless of the subject's tensors.

    Between graphs, eager code runs on the subject's tensors and may read values that fake tensors
    do not have. Inside the compiler they are replaced by its own, so a rejection in its own words
    counts. Any other failure may be an artefact of fake tensors: if the tier is `auto`, the
    launcher may evaluate the request again with real tensors.
    """
    if subject.fake_mode is None or isinstance(error, _REJECTIONS) or _NO_FRAMES in str(error):
        return True
    if str(error).startswith(_UNBOUND_SYMBOLS):
        return True
    if isinstance(error, exc.TorchRuntimeError) and subject.request.device is not None:
        return True  # an operator failed on Dynamo's fake tensors, which it makes of real ones too
    return subject.request.tier is Tier.FAKE and is_by_compiler(error)


def is_by_compiler(error: BaseException) -> bool:
    """Whether the compiler raised it; False if the model or a compiled graph did."""
    if isinstance(error, exc.TorchDynamoException | exc.FailOnRecompileLimitHit):
        return True
    if _NO_FRAMES in str(error):
        return True
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.endswith(_CONVERT_FRAME):
            return True
        trace = trace.tb_next
    return False


def message_of(error: BaseException) -> str:
    return str(getattr(error, "msg", None) or error)


Codes = tuple[tuple[str, str], ...]
"""(code, pattern of the message): causes specific to a target; the first match counts."""


def compiler_failure(error: BaseException, codes: Codes) -> ErrorRecord:
    """Return the record of a failure, with a code from `codes`, or else from Dynamo's codes.

    Raises the cause if memory ran out, because that says nothing about the model.
    """
    raise_if_out_of_memory(error)
    record = compiler_error(error)
    own_code = next((code for code, pattern in codes if re.search(pattern, record.message)), None)
    return msgspec.structs.replace(record, code=own_code) if own_code else record


def failed(
    outcome: TargetOutcome, error: BaseException, codes: Codes, when: str = ""
) -> TargetOutcome:
    """Return the outcome with the failure of a compiler or of the compiled code.

    Raises the cause if memory ran out.
    """
    record, detail = compiler_failure(error, codes), f"{when}{one_line(error)}"
    return msgspec.structs.replace(outcome, status=Status.ERROR, detail=detail, error=record)
