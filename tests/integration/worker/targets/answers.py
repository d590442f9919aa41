"""Requests that a process answers which is warmed up as a server is, each in a fork.

Run by the tests as `answers.py TARGET`, perhaps in another environment. Reads a line for each
request, `FOLDER TAB VARIABLES TAB REQUEST` (JSON), and leaves what became of it in its folder.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

import compilewatch
from compilewatch.records import Request, Result, Tier

SOURCES = Path(compilewatch.__file__).parents[1]


class Answered(NamedTuple):
    """What a request left: `status` is that of its process, `result` None where it died."""

    status: int
    result: Any
    phases: list[str]
    artifacts: Path

    def kept(self) -> set[str]:
        """Return the files in its folder, which are those that the result names."""
        files = (path for path in self.artifacts.rglob("*") if path.is_file())
        names = {str(path.relative_to(self.artifacts)) for path in files}
        assert names == set(self.result.artifacts)
        return names


def ask(
    python: Path,
    target: str,
    requests: Mapping[str, tuple[Request, Mapping[str, str]]],
    root: Path,
    variables: Mapping[str, str],
) -> dict[str, Answered]:
    """Ask one process for each request, by name, with further variables of its own."""
    lines = [
        f"{root / name}\t{msgspec.json.encode(own).decode()}\t"
        f"{msgspec.json.encode(request).decode()}\n"
        for name, (request, own) in requests.items()
    ]
    done = subprocess.run(
        [str(python), __file__, target],
        input="".join(lines),
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
        env={**os.environ, "PYTHONPATH": str(SOURCES), **variables},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return {name: _answered(root / name) for name in requests}


def _answered(folder: Path) -> Answered:
    result, status = folder / "result.json", int((folder / "status").read_text())
    if not result.exists():
        return Answered(status, None, [], folder)
    phases = msgspec.json.decode((folder / "phases.json").read_bytes())
    decoded = msgspec.json.decode(result.read_bytes(), type=Result)
    return Answered(status, decoded, phases, folder / "artifacts")


def answer(request: Request, folder: Path) -> None:
    from compilewatch.worker import phases

    (folder / "artifacts").mkdir(parents=True)
    marks: list[str] = []
    found = phases.evaluate(request, Tier.REAL, folder, lambda phase: marks.append(phase.value))
    (folder / "phases.json").write_bytes(msgspec.json.encode(marks))
    (folder / "result.json").write_bytes(msgspec.json.encode(found.result))


def main() -> None:
    from compilewatch.worker.process.warmup import warm_up

    # A backward in a fork of a process that has compiled may end it; TorchNeuron is never forked.
    warm_up(sys.argv[1:], single="neuron" in sys.argv)
    for line in sys.stdin:
        folder, variables, encoded = line.split("\t")
        request = msgspec.json.decode(encoded, type=Request)
        if os.fork() == 0:
            os.environ.update(msgspec.json.decode(variables))
            answer(request, Path(folder))
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.wait()[1])
        (Path(folder) / "status").write_text(str(status))


if __name__ == "__main__":
    main()
