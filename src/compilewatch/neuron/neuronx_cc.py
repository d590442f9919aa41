"""neuronx-cc as a subprocess: from an HLO module to a NEFF, with measurements.

Command line: Neuron SDK 2.32.0, `compiler/neuronx-cc/api-reference-guide`. The folder of a
compilation contains `graph.neff`, `neuronx-cc.log` (the compiler's log), `console.txt` (its output)
and `neuron.json` (`NeuronDetail`), which is written last and marks a complete compilation.

NEFF files, the output of neuronx-cc: a header of 1024 bytes, then a tarball.

Layout: Neuron SDK 2.32.0, `neuron-runtime/explore/work-with-neff-files.rst`. Little-endian; the
last 468 bytes of the header are reserved. A file has exactly `header_bytes` + `data_bytes`.

Why neuronx-cc failed: maps its codes, exit statuses and signals to a few classes.

Codes are those of the compiler's documentation (Neuron SDK 2.32.0, `compiler/error-codes`), which
lists 60 of them and does not claim to be complete. A code that is not in the table is kept and gets
the class `unknown`, or `internal` if its first letter is I, as in all undocumented codes that users
report. Before 2.2x, codes had no `NCC_`: `[XTP002]`, `[TEN404]`, and `[F137]`, where the number is
the exit status of a shell (128 plus a signal).
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from compilewatch import files
from compilewatch.contract import processes
from compilewatch.errors import CompilerError
from compilewatch.files import DamagedError, from_json
from compilewatch.records import SCHEMA_VERSION, NeffHeader, NeuronDetail, NeuronFailure

HEADER = struct.Struct("<5Q128sI32s16s256sI64sQI468s")


class NeffError(ValueError):
    """The file is not a complete NEFF; the message says why."""


def read_header(path: Path) -> NeffHeader | None:
    """Read a file's header; None for another layout. Raises NeffError for a truncated file."""
    size = path.stat().st_size
    with path.open("rb") as file:
        raw = file.read(HEADER.size)
    if len(raw) < HEADER.size:
        raise NeffError(f"{size} bytes are less than the header of a NEFF")
    (package, header, data, major, minor, build, cores, digest, uuid, name, *rest) = HEADER.unpack(
        raw
    )
    requested, _per_node, features, logical, _reserved = rest
    if header != HEADER.size:
        return None
    if header + data > size:
        raise NeffError(f"its header says {header} + {data} bytes, the file has {size}")
    return NeffHeader(
        package_version=package,
        header_bytes=header,
        data_bytes=data,
        version=f"{major}.{minor}",
        build=_text(build),
        cores=cores,
        requested_cores=requested,
        hash=digest.hex(),
        uuid=uuid.hex(),
        name=_text(name),
        feature_bits=features,
        logical_core_size=logical,
    )


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode(errors="replace")


UNKNOWN = "unknown"
INTERNAL = "internal"
HOST_MEMORY = "host_memory"
CRASHED = "crashed"
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
"""Class -> codes, without `NCC_`. Only users report EVRF029; XTP002 and TEN404 are old."""

KINDS = frozenset({*CODES, UNKNOWN, HOST_MEMORY, CRASHED, TIMEOUT, LOWERING})

_CODE = re.compile(r"\[?NCC_([A-Z][A-Z]{3}\d{3})\]?:?[ \t]*(?P<text>.*)")
_OLD_CODE = re.compile(r"\[([A-EG-Z][A-Z]{2}\d{3})\][ \t]*(?P<text>.*)")
_ENDED = re.compile(r"\[F(\d{3})\][ \t]*(?P<text>.*)")
_INTERNAL_ERROR = re.compile(r"INTERNAL_ERROR|Internal Compiler Error", re.IGNORECASE)
_LOG_PREFIX = re.compile(r"^\S+Z (ERROR|USER|CRITICAL) \d+ \[[^\]]*\]: *")
_CLASS_OF_CODE = {code: kind for kind, codes in CODES.items() for code in codes}
_CRASHES = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)


def failure(log: str, exit_status: int | None) -> NeuronFailure:
    """Return why the compiler failed. `exit_status` is negative for a signal, None if unknown.

    The compiler's own code takes precedence over its exit status, which is 70 for nearly
    everything.
    """
    ended = _signal(exit_status)
    if ended and exit_status is not None and exit_status < 0:
        # It was stopped, so earlier messages in the log are irrelevant.
        words = _last_words(log)
        return NeuronFailure(kind=_kind_of_signal(ended), message=words, signal=ended.name)
    current, old, abnormal = _CODE.search(log), _OLD_CODE.search(log), _ENDED.search(log)
    code, match = None, current or old or abnormal
    if current:
        code, kind = f"NCC_{current[1]}", _kind_of_code(current[1])
    elif old:
        code, kind = old[1], _CLASS_OF_CODE.get(old[1], UNKNOWN)
    elif abnormal:
        code = f"F{abnormal[1]}"
        ended = _signal(int(abnormal[1]))
        kind = _kind_of_signal(ended)
    else:
        kind = _kind_of_signal(ended)
    if kind == UNKNOWN and not current and _INTERNAL_ERROR.search(log):
        kind = INTERNAL
    message, _, advice = (match["text"] if match else _last_words(log)).partition(" - ")
    return NeuronFailure(
        kind=kind,
        code=code,
        message=message.strip(),
        advice=advice.strip(),
        exit_status=exit_status,
        signal=ended.name if ended else None,
    )


def _kind_of_code(code: str) -> str:
    return _CLASS_OF_CODE.get(code, INTERNAL if code.startswith("I") else UNKNOWN)


def _kind_of_signal(which: signal.Signals | None) -> str:
    if which is signal.SIGKILL:  # by the kernel, out of memory: nothing else sends it here
        return HOST_MEMORY
    return CRASHED if which in _CRASHES else UNKNOWN


def _signal(exit_status: int | None) -> signal.Signals | None:
    """Return the signal of -9 (subprocess) or 137 (shell)."""
    number = exit_status or 0
    try:
        return signal.Signals(-number if number < 0 else number - 128)
    except ValueError:
        return None


def _last_words(log: str) -> str:
    """Return the last line with text, for a failure without a code."""
    lines = [_LOG_PREFIX.sub("", line).strip() for line in log.splitlines()]
    texts = [line for line in lines if line.strip("*")]
    return texts[-1] if texts else ""


ROUTE = "neuronx-cc"
TARGETS = ("trn1", "trn1n", "inf2", "trn2", "trn3")
DEFAULT_TARGET = "trn1"

HLO_SUFFIX = ".hlo_module.pb"
"""Suffix of captured modules; `NAME.parameters.json` exists if one may be compiled."""

NEFF_FILE = "graph.neff"
LOG_FILE = "neuronx-cc.log"
CONSOLE_FILE = "console.txt"
DETAIL_FILE = "neuron.json"

PINNED = (
    ("--model-type", "generic", TARGETS),
    ("--auto-cast", "none", TARGETS),
    ("--optlevel", "2", TARGETS),
    # Defaults that the next SDK is announced to change (release notes of neuronx-cc 2.27).
    ("--native-int64", "disabled", ("trn2", "trn3")),
    ("--implicit-integer-downcast", "all", TARGETS),
)
"""Flag, value, and the targets that support it: today's defaults, passed explicitly so that results
do not change with a default. Flags that an older compiler does not list are omitted."""

DEFAULT_CACHE = "/var/tmp/neuron-compile-cache"

LOG_BYTES = 256 * 1024
"""Bytes at the end of a log in which causes are looked for."""

_VERSION = re.compile(r"NeuronX Compiler version (\S+)")
_QUERY_SECONDS = 120.0


@dataclass(frozen=True, kw_only=True)
class Compiler:
    """An installed neuronx-cc: `known` are the flags that its `compile --help` lists."""

    path: str
    version: str
    known: frozenset[str]

    def flags(self, target: str) -> tuple[str, ...]:
        """Return all flags that can change its result, with fixed values; see `PINNED`."""
        pinned = [
            (name, value)
            for name, value, targets in PINNED
            if target in targets and name in self.known
        ]
        return ("--framework", "XLA", "--target", target, *(x for pair in pinned for x in pair))


def find() -> str | None:
    """Find neuronx-cc: next to this Python (a venv that is not activated), or else on PATH."""
    return processes.program("neuronx-cc")


def describe(path: str) -> Compiler:
    """Read version and flags of a compiler. Raises CompilerError if it does not start."""
    # On stderr, in some versions.
    output = output_of([path, "--version"], _QUERY_SECONDS, errors_too=True)
    version = _VERSION.search(output)
    if version is None:
        raise CompilerError(f"{path} --version prints no NeuronX Compiler version: reinstall it")
    listed = output_of([path, "compile", "--help"], _QUERY_SECONDS, errors_too=True)
    known = frozenset(re.findall(r"(?<![\w-])--[a-z][\w-]+", listed))
    return Compiler(path=path, version=version[1], known=known)


def folder_of(hlo: Path, target: str) -> Path:
    """Return the output folder for an HLO module: `graph.trn1` next to `graph.hlo_module.pb`."""
    return hlo.with_name(f"{hlo.name.removesuffix(HLO_SUFFIX)}.{target}")


class Compilation:
    """The compilation of one HLO module, in a folder of its own. The constructor starts it.

    With `own_session`, `end` kills the compiler and all processes that it started; without, it
    stays in the process group of a worker's child and ends with it.
    """

    def __init__(
        self, compiler: Compiler, hlo: Path, target: str, folder: Path, *, own_session: bool
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name in (DETAIL_FILE, NEFF_FILE):
            (folder / name).unlink(missing_ok=True)
        self.folder = folder
        flags, digest = compiler.flags(target), sha256(hlo)
        cached = cached_neff(digest, compiler.version, flags)
        self._detail = NeuronDetail(
            target=target,
            route=ROUTE,
            flags=flags,
            compiler_version=compiler.version,
            hlo_sha256=digest,
            cached=cached is not None,
        )
        self._problem: NeuronFailure | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._started = time.monotonic()
        if cached is not None:
            shutil.copyfile(cached, folder / NEFF_FILE)
            return
        places = ("--output", str(folder / NEFF_FILE), "--logfile", str(folder / LOG_FILE))
        command = [compiler.path, "compile", str(hlo.resolve()), *flags, *places]
        # Only the flags that are passed here may apply.
        environ = {n: v for n, v in os.environ.items() if n != "NEURON_CC_FLAGS"}
        with (folder / CONSOLE_FILE).open("wb") as console:
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=console,
                    stderr=subprocess.STDOUT,
                    cwd=folder,
                    env=environ,
                    start_new_session=own_session,
                )
            except OSError as error:
                raise CompilerError(f"{compiler.path} cannot be run: {error.strerror}") from None

    @property
    def seconds(self) -> float:
        """Seconds from the start of the compiler to its end, or until now."""
        took = self._detail.compile_seconds
        return took if took is not None else time.monotonic() - self._started

    def done(self, *, wait: bool = False) -> bool:
        """Whether the compiler has ended; `wait` for it. Samples its memory at each call."""
        process = self._process
        if process is None or process.returncode is not None:
            return True
        while True:
            peak = processes.tree_peak_bytes(process.pid)
            ended = process.poll() is not None
            self._detail = msgspec.structs.replace(
                self._detail,
                compiler_peak_memory_bytes=processes.larger(
                    self._detail.compiler_peak_memory_bytes, peak
                ),
                compile_seconds=self.seconds if ended else None,
            )
            if ended or not wait:
                return ended
            time.sleep(processes.SAMPLE_SECONDS)

    def end(self, kind: str, message: str) -> None:
        """Kill the compiler's session; `kind` and `message` become the failure."""
        if self._process is None or self.done():
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self.done(wait=True)
        self._problem = NeuronFailure(kind=kind, message=message)

    def detail(self) -> NeuronDetail:
        """Wait for the end and return the result, which is also written to the folder."""
        self.done(wait=True)
        problem, status = self._problem, self._process.returncode if self._process else 0
        if problem is None and status:
            problem = failure(self.log(), status)
        detail = with_neff(self._detail, self.folder / NEFF_FILE, problem)
        files.replace(self.folder / DETAIL_FILE, msgspec.json.encode(detail))
        return detail

    def log(self) -> str:
        """Return the end of the console output, which has the error, and of the log."""
        return "\n".join(tail(self.folder / name) for name in (CONSOLE_FILE, LOG_FILE))


def described(detail: NeuronDetail) -> str:
    """Return one line for people: what was compiled, or why nothing was."""
    if detail.failure is None:
        size = (detail.neff_bytes or 0) / 2**20
        cached = ", from the compile cache" if detail.cached else ""
        return f"compiled for {detail.target}, {size:.1f} MiB{cached}"
    problem = detail.failure
    text = ": ".join(filter(None, (problem.code or problem.signal, problem.message)))
    return f"{problem.kind.replace('_', ' ')}: {text}" if text else problem.kind.replace("_", " ")


def with_neff(detail: NeuronDetail, path: Path, problem: NeuronFailure | None) -> NeuronDetail:
    """Return the detail with the NEFF at `path`, or with the failure, also for a broken NEFF."""
    if problem is None and not path.is_file():
        problem = NeuronFailure(kind=UNKNOWN, message="exit status 0 and no NEFF")
    if problem is not None:
        return msgspec.structs.replace(detail, failure=problem)
    size = path.stat().st_size
    try:
        header = read_header(path)
    except NeffError as error:
        broken = NeuronFailure(kind=UNKNOWN, message=f"a broken NEFF: {error}")
        return msgspec.structs.replace(detail, failure=broken)
    return msgspec.structs.replace(detail, compiled=True, neff_bytes=size, neff=header)


def earlier_result(folder: Path, compiler: Compiler, hlo: Path, target: str) -> NeuronDetail | None:
    """Return the result in the folder if its request was the same and its NEFF exists."""
    try:
        detail = from_json((folder / DETAIL_FILE).read_bytes(), NeuronDetail)
        read_header(folder / NEFF_FILE)
    except (OSError, DamagedError, NeffError):
        return None
    requested = (SCHEMA_VERSION, True, compiler.version, compiler.flags(target), sha256(hlo))
    stored = (detail.schema_version, detail.compiled, detail.compiler_version, detail.flags)
    return detail if (*stored, detail.hlo_sha256) == requested else None


def cached_neff(digest: str, version: str, flags: tuple[str, ...]) -> Path | None:
    """Find the NEFF of this HLO, compiler and flags in Neuron's persistent cache.

    Layout: `about-neuron/arch/neuron-features/neuron-caching.rst`. The hash in the name of an entry
    is libneuronxla's own, so entries are compared by content. A cache on S3 is not searched.
    """
    url = os.environ.get("NEURON_COMPILE_CACHE_URL") or DEFAULT_CACHE
    if "://" in url:
        return None
    for done in sorted(Path(url, f"neuronxcc-{version}").glob("MODULE_*/model.done")):
        entry = done.parent
        neff = entry / "model.neff"
        with contextlib.suppress(OSError, ValueError):
            used = json.loads((entry / "compile_flags.json").read_bytes())
            same = used == list(flags) and sha256(entry / "model.hlo_module.pb") == digest
            if same and neff.is_file():
                return neff
    return None


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tail(path: Path) -> str:
    """Return the end of a log, "" if it does not exist."""
    return processes.tail(path, LOG_BYTES)


def output_of(command: list[str], seconds: float, *, errors_too: bool = False) -> str:
    """Run a program of the SDK and return what it printed. Raises CompilerError.

    With `errors_too`, what it printed to its standard error comes with it.
    """
    name = f"{Path(command[0]).name} {command[1]}"
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if errors_too else subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CompilerError(f"{name} did not end within {seconds:g} s") from None
    except OSError as error:
        raise CompilerError(f"{command[0]} cannot be run: {error.strerror}") from None
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise CompilerError(f"{name} failed with exit status {done.returncode}: {lines[-1]}")
    return done.stdout


TOOLS = Path("/opt/aws/neuron/bin")
"""Where the tools are installed, often without being on PATH."""

PRODUCT = Path("/sys/devices/virtual/dmi/id/product_name")
"""The instance type on EC2, such as `trn1.2xlarge`."""

TIMEOUT_SECONDS = 60.0


def core_count() -> int:
    """Return how many NeuronCores `neuron-ls -j` lists; 0 without the tool, driver or device."""
    tool = processes.program("neuron-ls", str(TOOLS))
    if tool is None:
        return 0
    try:
        done = subprocess.run(
            [tool, "-j"], capture_output=True, check=True, timeout=TIMEOUT_SECONDS
        )
        return sum(int(device["nc_count"]) for device in json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError):
        return 0


def instance_family(product: Path = PRODUCT) -> str | None:
    """Return `trn1` for a trn1.2xlarge; None if the machine does not report its type."""
    try:
        return product.read_text().strip().partition(".")[0] or None
    except OSError:
        return None


def family_of(backend: str | None) -> str:
    """Return the family to compile for: the named one, this machine's, or the default."""
    own = instance_family() if core_count() else None
    return backend or (own if own in TARGETS else DEFAULT_TARGET)
