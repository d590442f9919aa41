"""Converting exceptions to `ErrorRecord`s: a bounded code, a message and a source line."""

import errno
import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path

from compilewatch.errors import CompilewatchError
from compilewatch.records import ErrorRecord

Place = tuple[str, int, str]
"""File, line and function."""

KEPT_CHARACTERS = 16 * 1024
"""Characters kept at each end of the traceback; the cause is often lost with a few hundred."""

MESSAGE_CHARACTERS = 8 * 1024

DISK_FAILURE = "disk_failure"
"""Code of a disk error: disk full, quota exceeded, read-only or broken file system."""

_DISK_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)
_DISK_MESSAGE = r"No space left on device|Disk quota exceeded|Input/output error"

_CODES_BY_TYPE = {
    "DataDependentOutputException": "data_dependent",
    "DynamicOutputShapeException": "data_dependent",
    "GuardOnDataDependentSymNode": "data_dependent",
    "UnsupportedFakeTensorException": "unsupported_by_fake_tensors",
    "UnsupportedOperatorException": "unsupported_operator",
    "MissingPackageError": "missing_package",
    "ModuleNotFoundError": "missing_package",
    "UnknownArchitectureError": "unknown_architecture",
    "OutOfMemoryError": "out_of_memory",
    "MemoryError": "out_of_memory",
}

_CODES_BY_MESSAGE = (
    (_DISK_MESSAGE, DISK_FAILURE),  # from a compiler that torch starts
    (r"can't allocate memory|out of memory|std::bad_alloc", "out_of_memory"),
    (r"requires the .+ librar|No module named|requires '[\w-]+[<>=]", "missing_package"),
    (r"on meta tensors|_local_scalar_dense|data-dependent", "data_dependent"),
    (
        r"shapes cannot be multiplied|must match the size|[Ss]izes of tensors must match"
        r"|is invalid for input of size|expected input.* to have|not broadcastable"
        r"|size mismatch|[Ss]hape mismatch|must have (the )?same (shape|size)|inconsistent tensor",
        "shape_mismatch",
    ),
    (
        r"expected scalar type|Expected inputs of \w+ type|same dtype|[Dd]type mismatch",
        "dtype_mismatch",
    ),
    (r"index out of range|out of bounds", "index_out_of_range"),
)


PACKAGES = {
    "PIL": "pillow",
    "attr": "attrs",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""Module -> the package that has it, where the names differ."""


class RecordedError(Exception):
    """An exception of another process: its record, `one_line`, and the names of its types.

    The names are those of all classes of the exception and of its causes.
    """

    def __init__(self, record: ErrorRecord, *, line: str, names: Iterable[str]) -> None:
        super().__init__(record.message)
        self.record = record
        self.line = line
        self.names = frozenset(names)


def error_record(error: BaseException) -> ErrorRecord:
    """Record an exception: type, message, both ends of its traceback, and where it was raised.

    The location is the line that a reader can look at (see `_innermost`); for a SyntaxError it is
    the line with the wrong syntax. An error of compilewatch has none: its message says what to do.
    """
    if isinstance(error, RecordedError):
        return error.record
    text = "".join(traceback.format_exception(error))
    place = None if isinstance(error, CompilewatchError) else _place(error)
    return ErrorRecord(
        type=type(error).__qualname__,
        message=_clip(_message(error)),
        code=error_code(error),
        head=text[:KEPT_CHARACTERS],
        tail=text[KEPT_CHARACTERS:][-KEPT_CHARACTERS:],
        file=place[0] if place else None,
        line=place[1] if place else None,
        function=place[2] if place else None,
    )


def error_code(error: BaseException) -> str:
    """Return a short, bounded code for the failure, or its type's name in snake case."""
    if isinstance(error, RecordedError):
        return error.record.code
    for cause in causes(error):
        if isinstance(cause, OSError) and cause.errno in _DISK_ERRNOS:
            return DISK_FAILURE
        if type(cause).__name__ in _CODES_BY_TYPE:
            return _CODES_BY_TYPE[type(cause).__name__]
    message = _message(error)[:MESSAGE_CHARACTERS]
    for pattern, code in _CODES_BY_MESSAGE:
        if re.search(pattern, message):
            return code
    words = r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])"
    return re.sub(words, "_", type(error).__name__).lower()[:60]


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the exception and its causes, outermost first."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__


def type_names(error: BaseException) -> frozenset[str]:
    """Return the names of all classes of an exception and of its causes."""
    if isinstance(error, RecordedError):
        return error.names
    return frozenset(kind.__name__ for cause in causes(error) for kind in type(cause).__mro__)


def one_line(error: BaseException, limit: int = 200) -> str:
    """Return `Type: first line of the message`, shortened to `limit` characters."""
    if isinstance(error, RecordedError):
        return error.line
    lines = _message(error).strip().splitlines()
    text = type(error).__name__ + (f": {lines[0]}" if lines else "")
    return text if len(text) <= limit else text[: limit - 1] + "…"


def relative_file(path: str, folders: Iterable[str] = ()) -> str:
    """Return a source file relative to its package's parent: `transformers/models/…`.

    The longest matching entry of `folders` and `sys.path` counts, so that the result is the same in
    every environment; of a file outside all entries, the last two parts are kept. compilewatch
    itself counts as installed: in other environments it is loaded from the parent's folder.
    """
    places = [*folders, *sys.path, str(Path(__file__).parents[2])]
    roots = [root.rstrip("/") + "/" for root in places if root and path.startswith(root)]
    containing = [root for root in roots if path.startswith(root)]
    if containing:
        return path[len(max(containing, key=len)) :]
    return "/".join(Path(path).parts[-2:])


def how_to_get(module: str) -> str:
    """Return what to type for a package that an environment lacks, by the name of its module."""
    package = PACKAGES.get(module, module)
    return (
        f"needs the package {package}, which is not in this environment: `compilewatch env create "
        f"{package} --with {package}`, then --environment {package}"
    )


def _place(error: BaseException) -> Place | None:
    if isinstance(error, SyntaxError) and error.filename and error.filename[0] != "<":
        return relative_file(error.filename), error.lineno or 1, "<module>"
    trace = traceback.walk_tb(error.__traceback__)
    return _innermost(
        [(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in trace]
    )


def place_in_dump(text: str, folders: Iterable[str] = ()) -> Place | None:
    """Return file, line and function where a process was, from the output of `faulthandler`.

    `folders` are those that the process had on its path besides this one's.
    """
    frames = [
        (frame["file"], int(frame["line"]), frame["function"])
        for frame in _DUMPED_FRAME.finditer(text)
    ]
    return _innermost(frames[::-1], folders)


def _innermost(frames: list[Place], folders: Iterable[str] = ()) -> Place | None:
    """Return the last frame of the user's own file, else of a model, else of all."""
    named = [(relative_file(file, folders), line, function) for file, line, function in frames]
    models = [frame for frame in named if not _is_machinery(frame[0])]
    own = [
        frame
        for (file, *_), frame in zip(frames, named, strict=True)
        if frame in models
        and not frame[0].startswith("transformers/")
        and not _INSTALLED.search(file)
    ]
    chosen = own or models or named
    return chosen[-1] if chosen else None


def _is_machinery(file: str) -> bool:
    """Whether a file, relative to its package, is torch's, the harness's or the interpreter's.

    Of Transformers, only what builds and calls its models.
    """
    root = file.partition("/")[0].removesuffix(".py")
    return (
        file.startswith(_NOT_THE_MODEL)
        or root in sys.stdlib_module_names
        or (root == "transformers" and not file.startswith("transformers/models/"))
    )


_DUMPED_FRAME = re.compile(
    r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$', re.MULTILINE
)
_NOT_THE_MODEL = ("torch/", "compilewatch/worker/", "<")
_INSTALLED = re.compile(r"/(site|dist)-packages/|^<")


def _message(error: BaseException) -> str:
    try:
        return str(error).encode(errors="backslashreplace").decode()  # no lone surrogate
    except BaseException:  # noqa: BLE001  (model code's own __str__; a record is owed all the same)
        return "<its __str__ raised>"


def _clip(text: str) -> str:
    if len(text) <= MESSAGE_CHARACTERS:
        return text
    half = MESSAGE_CHARACTERS // 2
    return f"{text[:half]}\n…\n{text[-half:]}"
