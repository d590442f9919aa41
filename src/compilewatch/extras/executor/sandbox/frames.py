"""What a sandbox and its supervisor pass on: frames, sealed files, and the parsing of results.

A frame is 4 bytes of length, then the data. Frames and not the JSON lines of `contract.messages`,
because they hold files, and because the first program inside imports nothing but the standard
library.
"""

from __future__ import annotations

import fcntl
import io
import os
import selectors
import time
from typing import IO

import msgspec

from compilewatch.extras.executor.sandbox.policy import Name
from compilewatch.records import Record

HEADER_BYTES = 2**20


class Header(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the first program says about the command; hostile code may have forged it."""

    exit_code: int | None
    signal: int | None
    timed_out: bool
    files: list[str]
    left_out: int


def parsed(data: bytes, most_files: int, most_bytes: int) -> tuple[Header | None, dict[str, bytes]]:
    """The header and files that the sandbox returned; no header if they are not as they must be.

    A file with a name that is not a `Name` is left out.
    """
    stream = io.BytesIO(data)
    try:
        receive_frame(stream)  # says that the first program runs
        header = msgspec.json.decode(receive_frame(stream), type=Header)
        if len(header.files) > most_files:
            raise ValueError("too many files")
        files = {name: receive_frame(stream) for name in header.files}
    except (EOFError, ValueError, msgspec.MsgspecError):
        return None, {}
    if sum(map(len, files.values())) > most_bytes:
        return None, {}
    return header, {name: content for name, content in files.items() if is_name(name)}


def is_name(text: str) -> bool:
    """Whether the text can name a file outside."""
    try:
        msgspec.convert(text, Name)
    except msgspec.ValidationError:
        return False
    return True


def memory_file(data: bytes) -> int:
    """A file in memory that cannot be changed, open for a child process."""
    descriptor = os.memfd_create("compilewatch", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def read_all(descriptor: int, seconds: float) -> bytes:
    """What a pipe gives until its end, for at most so long."""
    until, data = time.monotonic() + seconds, b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while selector.select(max(0.0, until - time.monotonic())):
            part = os.read(descriptor, 1 << 16)
            if not part or len(data) > HEADER_BYTES:
                break
            data += part
    return data


def receive_frame(stream: IO[bytes]) -> bytes:
    """One frame. Raises EOFError if the stream ends before."""
    return _exactly(stream, int.from_bytes(_exactly(stream, 4), "big"))


def _exactly(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) != size:
        raise EOFError("the stream ended")
    return data


def send_frame(stream: IO[bytes], data: bytes) -> None:
    """Write one frame."""
    stream.write(len(data).to_bytes(4, "big"))
    stream.write(data)
    stream.flush()
