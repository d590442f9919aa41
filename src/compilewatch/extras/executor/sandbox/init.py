"""The first program inside a sandbox: trusted, of the standard library only, run with `python -c`.

It reads one JSON document, writes the job's files, starts the command under resource limits, and
returns what the command left in its output folder. It holds nothing worth stealing: whoever kills
or deceives it only spoils the result of the own job, and everything that must be true is measured
outside (`supervisor`).

    first.py RESULT_FD PAYLOAD_FD    go-ahead: one byte on standard input

It writes frames (4 bytes of length, then the data): `{}` when it runs, then a JSON header, then one
frame for each file of the header.
"""

import base64
import contextlib
import ctypes
import json
import os
import resource
import signal
import stat
import sys
import time
from typing import Any

PR_SET_DUMPABLE = 4
MOST_CHARACTERS = 240
"""Of a path. The supervisor is stricter (`policy.Name`); one name must not spoil the header."""

NICENESS = 5
"""The service must respond while jobs use all processors."""


def main() -> None:
    """Run one job; the exit status is that of its command, or 128 and the signal's number."""
    results, payload = int(sys.argv[1]), int(sys.argv[2])
    # Code of the same user could read the descriptors of this process otherwise.
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    if not os.read(0, 1):
        sys.exit(126)  # The supervisor died before it could hold this sandbox.
    with open(payload, "rb") as file:
        job = json.load(file)
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    os.closerange(3, results)
    os.closerange(results + 1, 4096)
    os.set_inheritable(results, False)
    os.umask(0o077)
    for name, content in job["files"].items():
        path = os.path.join(job["folder"], name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(base64.b64decode(content))
    os.makedirs(job["output"], exist_ok=True)
    send(results, b"{}")
    status, timed_out = run(job)
    code = os.waitstatus_to_exitcode(status)
    files, left_out = collect(job["output"], job["output_files"], job["output_bytes"])
    header = {"status": None if timed_out else code, "files": list(files), "left_out": left_out}
    send(results, json.dumps(header).encode())
    for content in files.values():
        send(results, content)
    os._exit(code if code >= 0 else 128 - code)


def run(job: dict[str, Any]) -> tuple[int, bool]:
    """Run the command until its end or the deadline, then end everything else in the sandbox."""
    child = os.fork()
    if child == 0:
        try:
            for kind, limit in job["rlimits"]:
                resource.setrlimit(kind, (limit, limit))
            os.nice(NICENESS)
            os.chdir(job["folder"])
            os.execve(job["command"][0], job["command"], job["variables"])
        except (OSError, ValueError) as error:
            os.write(2, f"{job['command'][0]} cannot be started: {error}\n".encode())
        os._exit(127)
    timed_out = False

    def expire(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, job["deadline_seconds"])
    try:
        _, status = os.waitpid(child, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except TimeoutError:
        timed_out = True
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    # Several times: a process that forks in a loop may be between two of its children.
    for _ in range(20):
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            break
        time.sleep(0.002)
    return status, timed_out


def collect(folder: str, most_files: int, most_bytes: int) -> tuple[dict[str, bytes], int]:
    """The regular files below a folder, within the limits, and how many others there were."""
    files: dict[str, bytes] = {}
    left_out = 0
    if os.path.islink(folder):  # the folder itself is made by code that wants to confuse us
        return files, 1
    for path, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            whole = os.path.join(path, name)
            inside = os.path.relpath(whole, folder)
            plain = len(inside) <= MOST_CHARACTERS and inside.isascii() and inside.isprintable()
            content = read(whole, most_bytes) if plain and len(files) < most_files else None
            if content is None:
                left_out += 1
                continue
            most_bytes -= len(content)
            files[inside] = content
    return files, left_out


def read(path: str, most_bytes: int) -> bytes | None:
    """The content of a regular file; None for anything else and for one that is too large."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > most_bytes:
            return None
        with contextlib.suppress(OSError):
            return file.read(most_bytes)
    return None


def send(descriptor: int, data: bytes) -> None:
    """Write one frame."""
    data = len(data).to_bytes(4, "big") + data
    while data:
        data = data[os.write(descriptor, data) :]


if __name__ == "__main__":
    main()
