"""The proof that a sandbox holds here: a few attacks of our own, each of which must fail."""

from __future__ import annotations

import functools

import msgspec

from compilewatch.errors import SandboxError
from compilewatch.extras.executor.sandbox import bubblewrap
from compilewatch.extras.executor.sandbox.policy import SandboxEnding, SandboxLimits, SandboxSpec
from compilewatch.extras.executor.sandbox.supervised import Supervised

ATTACKS = """
import ctypes, json, os, socket, sys, time

succeeded = []

def attempt(name, attack):
    try:
        if attack():
            succeeded.append(name)
    except OSError:
        pass

def inherited():
    found = open("/proc/1/environ", "rb").read().split(bytes(1))
    return {each.partition(b"=")[0] for each in found} - {b"", b"PWD"}

def connected():
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM)

def written(path):
    return open(path, "w")

def unshared():
    return ctypes.CDLL(None).unshare(0x10000000) == 0

def traced():
    return ctypes.CDLL(None).ptrace(0, 0, 0, 0) == 0

def others():
    return len([p for p in os.listdir("/proc") if p.isdigit()]) > 4

attempt("read the variables of the process that started it", inherited)
attempt("open a network socket", connected)
attempt("write to /", lambda: written("/planted"))
attempt("write to /usr", lambda: written("/usr/planted"))
attempt("write to its interpreter", lambda: written(sys.prefix + "/planted"))
attempt("make a user namespace", unshared)
attempt("trace a process", traced)
attempt("see processes outside", others)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
os.makedirs("out", exist_ok=True)
with open("out/succeeded.json", "w") as file:
    json.dump(succeeded, file)
"""

LIMITS = SandboxLimits(
    deadline_seconds=30.0, memory_bytes=512 * 2**20, disk_bytes=2**20, output_bytes=2**16
)


@functools.cache
def check(python: str) -> None:
    """Raise SandboxError unless code of this interpreter is confined here."""
    bubblewrap.program()
    bubblewrap.load()
    run = SandboxSpec(
        command=(python, "-I", "-S", "probe.py"),
        python=python,
        files={"probe.py": ATTACKS.encode()},
        variables={"PATH": "/usr/bin:/bin"},
        limits=LIMITS,
    )
    result = Supervised(run).wait()
    if result.ending is SandboxEnding.NOT_STARTED:
        raise SandboxError(f"unreviewed code cannot be confined: {result.detail}")
    if result.ending is not SandboxEnding.EXITED or result.exit_code != 0:
        lines = result.stderr.decode(errors="replace").strip().splitlines() or [result.detail]
        raise SandboxError(f"the sandbox's own test does not run here: {lines[-1]}")
    try:
        succeeded = msgspec.json.decode(result.files["succeeded.json"], type=list[str])
    except (KeyError, msgspec.MsgspecError):
        raise SandboxError("the sandbox's own test returned nothing") from None
    if result.survivors:
        succeeded.append("outlive the sandbox")
    if succeeded:
        raise SandboxError(
            f"the sandbox does not hold here: code in it can {', '.join(succeeded)}: "
            "update the kernel and bubblewrap"
        )
