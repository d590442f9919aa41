"""Why neuronx-cc failed: maps its codes, exit statuses and signals to a few classes.

Codes are those of the compiler's documentation (Neuron SDK 2.32.0, `compiler/error-codes`), which
lists 60 of them and does not claim to be complete. A code that is not in the table is kept and gets
the class `unknown`, or `internal` if its first letter is I, as in all undocumented codes that users
report. Before 2.2x, codes had no `NCC_`: `[XTP002]`, `[TEN404]`, and `[F137]`, where the number is
the exit status of a shell (128 plus a signal).
"""

from __future__ import annotations

import re
import signal

from compilewatch.records import NeuronFailure

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
