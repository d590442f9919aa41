"""The Neuron SDK's compiler, neuronx-cc: from a module to a NEFF, and why there is none.

Command line: Neuron SDK 2.32, `compiler/neuronx-cc/api-reference-guide`. The folder of a
compilation contains `graph.neff`, `neuronx-cc.log` (the compiler's log), `console.txt` (its output)
and `neuron.json` (`NeuronDetail`), which its caller writes last and which marks a complete one.
"""

import hashlib
import json
import math
import os
import re
import resource
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from compilewatch import files
from compilewatch.contract import processes
from compilewatch.errors import CompilerError
from compilewatch.records import NeuronDetail, NeuronFailure

ROUTE = "neuronx-cc"
TARGETS = ("trn1", "trn1n", "inf2", "trn2", "trn3")
"""Instance families. The command line's page ends with trn2; AWS's pages on vLLM pass trn3."""

HLO_SUFFIX = ".hlo_module.pb"
"""Suffix of captured modules; `NAME.parameters.json` exists if one may be compiled."""

NEFF_FILE = "graph.neff"
LOG_FILE = "neuronx-cc.log"
CONSOLE_FILE = "console.txt"
DETAIL_FILE = "neuron.json"

LOG_BYTES = 256 * 1024
"""Bytes at the end of a log in which causes are looked for."""

# --- why it failed --------------------------------------------------------------------------------

UNKNOWN, INTERNAL, HOST_MEMORY, CRASHED = "unknown", "internal", "host_memory", "crashed"
TIMEOUT = "timeout"
LOWERING = "lowering"
"""Raised before the compiler ran: the model could not be lowered to an HLO module."""

CODES: dict[str, tuple[str, ...]] = {
    "unsupported_operator": ("EVRF001", "EUOC002", "EVRF006", "EVRF019", "EVRF029"),
    "device_memory": ("EOOM001", "EOOM002", "EVRF009", "EXSP001"),
    "too_many_instructions": ("EBVF030", "EVRF007", "EXTP004", "XTP002"),
    "dynamic_shape": ("EMOD025",),
    "dtype": (
        *("EVRF004", "ESPP004", "ESPP047", "EVRF005", "EVRF051", "EVRF052", "ESFH002", "EVRF013"),
        *("EVRF016", "EVRF022", "EVRF035", "EVRF060", "EVRF061", "EVRF062", "EVRF063"),
    ),
    "dilation": ("EVRF010", "EVRF011", "EVRF017", "EVRF018"),
    "custom_call": (
        *("EHCA005", "EVRF015", "EBIR023", "EVRF059", "EVRF065", "EVRF057", "EVRF058"),
        *(f"EVRF{number:03}" for number in (*range(36, 51), 53, 54, 55)),
    ),
    "invalid_hlo": ("EVRF064", "EVRF031", "EVRF056"),
    "core_configuration": ("EARG001",),
    INTERNAL: ("TEN404",),
}
"""Class -> codes, without `NCC_`: those of SDK 2.32, `compiler/error-codes`.

It does not claim to be complete. Only users report EVRF029; XTP002 and TEN404 are old.
"""

KINDS = frozenset({*CODES, UNKNOWN, HOST_MEMORY, CRASHED, TIMEOUT, LOWERING})

_CLASS_OF_CODE = {code: kind for kind, codes in CODES.items() for code in codes}
_CLASS_OF_SIGNAL: dict[signal.Signals | None, str] = {
    signal.SIGKILL: HOST_MEMORY,  # by the kernel, out of memory: nothing else sends it here
    **dict.fromkeys(
        (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE), CRASHED
    ),
}
_FORMS = (
    r"\[?(?P<code>NCC_[A-Z]{4}\d{3})\]?:?",
    r"\[(?P<code>[A-EG-Z][A-Z]{2}\d{3})\]",  # before neuronx-cc 2.2x
    r"\[(?P<code>F\d{3})\]",  # the number is the exit status of a shell: 128 plus a signal
)
_INTERNAL_ERROR = re.compile(r"INTERNAL_ERROR|Internal Compiler Error", re.IGNORECASE)
_LOG_PREFIX = re.compile(r"^\S+Z (ERROR|USER|CRITICAL) \d+ \[[^\]]*\]: *")


def failure(log: str, exit_status: int | None) -> NeuronFailure:
    """Return why the compiler failed. `exit_status` is negative for a signal, None if unknown.

    The compiler's own code takes precedence over its exit status, which is 70 for nearly
    everything. A code that is in no class is kept: its class is `internal` if its first letter is
    I, as in all undocumented codes that users report, and otherwise `unknown`.
    """
    is_ended = exit_status is not None and exit_status < 0
    signalled, code = _signal(exit_status), None
    lines = [_LOG_PREFIX.sub("", line).strip() for line in log.splitlines()]
    text = next((line for line in reversed(lines) if line.strip("*")), "")
    for form in () if is_ended else _FORMS:  # of one that was ended, earlier messages mean nothing
        if found := re.search(rf"{form}[ \t]*(?P<text>.*)", log):
            code, text = found["code"], found["text"]
            break
    if code is not None and code.startswith("F"):
        signalled = _signal(int(code[1:]))
    name = (code or "F").removeprefix("NCC_")
    kind = _CLASS_OF_CODE.get(name)
    if kind is None and name.startswith("F"):
        kind = _CLASS_OF_SIGNAL.get(signalled)
    if kind is None:
        is_internal = name.startswith("I") or (not is_ended and _INTERNAL_ERROR.search(log))
        kind = INTERNAL if is_internal else UNKNOWN
    message, _, advice = text.partition(" - ")
    return NeuronFailure(
        kind=kind,
        code=code,
        message=message.strip(),
        advice=advice.strip(),
        exit_status=None if is_ended else exit_status,
        signal=signalled.name if signalled else None,
    )


def _signal(exit_status: int | None) -> signal.Signals | None:
    """Return the signal of -9 (subprocess) or 137 (shell)."""
    number = exit_status or 0
    with suppress(ValueError):
        return signal.Signals(-number if number < 0 else number - 128)
    return None


# --- compiling ------------------------------------------------------------------------------------

PINNED = (
    ("--model-type", "generic"),
    ("--auto-cast", "none"),
    ("--optlevel", "2"),
    # Defaults that the next SDK is announced to change (release notes of neuronx-cc 2.27).
    ("--native-int64", "disabled"),
    ("--implicit-integer-downcast", "all"),
)
"""Today's defaults, passed explicitly so that results do not change with a default. Flags that an
older compiler does not list are omitted; `--native-int64` is documented for trn2 only."""

_QUERY_SECONDS = 120.0


@dataclass(frozen=True, kw_only=True)
class Compiler:
    """An installed neuronx-cc: `known` are the flags that its `compile --help` lists."""

    path: str
    version: str
    known: frozenset[str]

    def flags(self, target: str) -> tuple[str, ...]:
        """Return all flags that can change its result, with fixed values; see `PINNED`."""
        known = self.known if target == "trn2" else self.known - {"--native-int64"}
        pinned = (word for flag in PINNED if flag[0] in known for word in flag)
        return ("--framework", "XLA", "--target", target, *pinned)


def find() -> str | None:
    """Find neuronx-cc: next to this Python (a venv that is not activated), or else on PATH."""
    return processes.program("neuronx-cc")


def describe(path: str) -> Compiler:
    """Read version and flags of a compiler. Raises CompilerError if it does not start."""
    # On stderr, in some versions.
    version = re.search(
        r"NeuronX Compiler version (\S+)", "".join(output_of([path, "--version"], _QUERY_SECONDS))
    )
    if version is None:
        raise CompilerError(f"{path} --version prints no NeuronX Compiler version: reinstall it")
    listed = "".join(output_of([path, "compile", "--help"], _QUERY_SECONDS))
    known = frozenset(re.findall(r"(?<![\w-])--[a-z][\w-]+", listed))
    return Compiler(path=path, version=version[1], known=known)


def folder_of(hlo: Path, target: str) -> Path:
    """Return the output folder for an HLO module: `graph.trn1` next to `graph.hlo_module.pb`."""
    return hlo.with_name(f"{hlo.name.removesuffix(HLO_SUFFIX)}.{target}")


def compile_module(
    compiler: Compiler,
    module: Path,
    folder: Path,
    *,
    target: str,
    flags: tuple[str, ...] | None = None,
    seconds: float = math.inf,
) -> NeuronDetail:
    """Compile the module of a file into a folder, and return what became of it.

    Args:
        module: an HLO (`NAME.hlo_module.pb`) or StableHLO (`NAME.mlir`): the suffix decides.
        flags: all of them (default: `compiler.flags(target)`); NEURON_CC_FLAGS adds none.
        seconds: after which the compiler is ended: a failure of the class TIMEOUT.

    Raises CompilerError if the compiler does not start, StoreError if the folder cannot be written.
    """
    flags = compiler.flags(target) if flags is None else flags
    places = ("--output", str(folder / NEFF_FILE), "--logfile", str(folder / LOG_FILE))
    command = [compiler.path, "compile", str(module.resolve()), *flags, *places]
    environ = {name: v for name, v in os.environ.items() if name != "NEURON_CC_FLAGS"}
    with files.explained("write", folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name in (DETAIL_FILE, NEFF_FILE):
            (folder / name).unlink(missing_ok=True)
    started, problem, status = time.monotonic(), None, 0
    try:
        with processes.PeakMemory() as peak:
            done = processes.run(command, seconds=seconds, cwd=folder, env=environ)
        output, status = done.stdout + done.stderr, done.returncode
    except subprocess.TimeoutExpired as late:
        output = (late.stdout or b"") + (late.stderr or b"")
        problem = NeuronFailure(kind=TIMEOUT, message=f"not finished after {seconds:g} s")
    except OSError as error:
        raise CompilerError(f"{compiler.path} cannot be run: {error.strerror}") from None
    taken = time.monotonic() - started
    (folder / CONSOLE_FILE).write_bytes(output)
    if status:
        problem = failure(log_of(folder), status)
    detail = NeuronDetail(
        target=target,
        route=ROUTE,
        flags=flags,
        compiler_version=compiler.version,
        hlo_sha256=sha256(module),
        compile_seconds=taken,
        compiler_peak_memory_bytes=peak.bytes,
    )
    return finished(detail, folder, problem)


def finished(detail: NeuronDetail, folder: Path, problem: NeuronFailure | None) -> NeuronDetail:
    """Return the detail with the folder's NEFF, or with why there is none."""
    neff = folder / NEFF_FILE
    if problem is None and not (neff.is_file() and neff.stat().st_size):
        problem = NeuronFailure(kind=UNKNOWN, message="exit status 0 and no NEFF")
    if problem is not None:
        return msgspec.structs.replace(detail, failure=problem)
    return msgspec.structs.replace(detail, compiled=True, neff_bytes=neff.stat().st_size)


def described(detail: NeuronDetail) -> str:
    """Return one line for people: what was compiled, or why nothing was."""
    problem = detail.failure
    if problem is None:
        return f"compiled for {detail.target}, {(detail.neff_bytes or 0) / 2**20:.1f} MiB"
    text = ": ".join(filter(None, (problem.code or problem.signal, problem.message)))
    return ": ".join(filter(None, (problem.kind.replace("_", " "), text)))


def log_of(folder: Path) -> str:
    """Return the end of the compiler's output in a folder, which has the error, and of its log."""
    return "\n".join(processes.tail(folder / f, LOG_BYTES) for f in (CONSOLE_FILE, LOG_FILE))


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def output_of(command: list[str], seconds: float) -> tuple[str, str]:
    """Run a program of the SDK; return its standard output and errors. Raises CompilerError."""
    try:
        done = processes.run(command, seconds=seconds)
    except subprocess.TimeoutExpired:
        reason = f"did not end within {seconds:g} s"
    except OSError as error:
        reason = f"cannot be run: {error.strerror}"
    else:
        output, errors = (text.decode(errors="replace") for text in (done.stdout, done.stderr))
        if done.returncode == 0:
            return output, errors
        lines = (errors or output).strip().splitlines() or ["no message"]
        reason = f"failed with exit status {done.returncode}: {lines[-1]}"
    raise CompilerError(f"{command[0]} {command[1]} {reason}")


# --- the machine ----------------------------------------------------------------------------------

TOOLS = Path("/opt/aws/neuron/bin")
"""Where the tools are installed, often without being on PATH."""

PRODUCT = Path("/sys/devices/virtual/dmi/id/product_name")
"""The instance type on EC2, such as `trn1.2xlarge`."""

_LIST_SECONDS = 60.0


def core_count() -> int:
    """Return how many NeuronCores `neuron-ls -j` lists; 0 without the tool, driver or device."""
    tool = processes.program("neuron-ls", str(TOOLS))
    if tool is None:
        return 0
    try:
        devices = json.loads(output_of([tool, "-j"], _LIST_SECONDS)[0])
        return sum(int(device["nc_count"]) for device in devices)
    except (CompilerError, ValueError, KeyError, TypeError):
        return 0


def family_of(backend: str | None = None, families: Sequence[str] = TARGETS) -> str:
    """Return the family to compile for: the named one, this machine's on EC2, or the first."""
    own = ""
    with suppress(OSError):
        own = PRODUCT.read_text().partition(".")[0]
    return backend or (own if own in families else families[0])


def prepare_process(compiler: str) -> None:
    """Prepare this process, which serves one request, for starting the compiler.

    The SDK looks for it on PATH, and flags from the environment would override the pinned ones. The
    compiler inherits the limits of this process: a NEFF may exceed 1 GiB, and the compiler needs
    more memory than the model (the launcher watches the total).
    """
    folder = str(Path(compiler).parent)
    os.environ["PATH"] = os.pathsep.join(filter(None, (folder, os.environ.get("PATH"))))
    os.environ.pop("NEURON_CC_FLAGS", None)
    for limit in (resource.RLIMIT_DATA, resource.RLIMIT_FSIZE):
        _, hard = resource.getrlimit(limit)
        resource.setrlimit(limit, (hard, hard))
