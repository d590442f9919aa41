"""What holds a sandbox to its memory limit: a cgroup where one can be made, else a watcher."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from compilewatch.contract.processes import descendants, field_bytes, is_alive, resident_bytes
from compilewatch.extras.executor.sandbox.policy import MemoryGuard, SandboxLimits

DELEGATED = "service"
"""The name of the service's own cgroup in a unit with `DelegateSubgroup=service`: only below such a
unit does systemd leave the cgroups to us."""

CGROUPS = Path("/sys/fs/cgroup")
TICK_SECONDS = 0.02
_V1 = ("memory", "pids")
_FOLDERS = ("job", "tmp", "dev/shm")


class Guard(Protocol):
    """Holds the processes below one process to a limit."""

    kind: MemoryGuard

    def prefix(self) -> list[str]:
        """What is put before the command that starts the sandbox."""
        ...

    def inside(self) -> contextlib.AbstractContextManager[None]:
        """What this process starts meanwhile is held from its birth. Raises OSError."""
        ...

    def hold(self, pid: int) -> None:
        """Hold this process, the first of the sandbox, before it runs. Raises OSError."""
        ...

    def exceeded(self) -> bool:
        """Whether the limit was exceeded since."""
        ...

    def peak_bytes(self) -> int | None: ...

    def pids(self) -> list[int]:
        """The processes that are held now."""
        ...

    def close(self) -> None: ...


def guard(limits: SandboxLimits) -> Guard:
    """The strongest guard that this machine allows."""
    for kind in (CgroupV2, CgroupV1):
        with contextlib.suppress(OSError, LookupError):
            return kind(limits)
    if os.geteuid() != 0 and Path(f"/run/user/{os.geteuid()}/bus").exists():
        return SystemdScope(limits)
    return Watcher(limits)


class CgroupV2:
    """A cgroup beside our own, in a unit of systemd that delegates them. Not yet run."""

    kind = MemoryGuard.CGROUP_V2

    def __init__(self, limits: SandboxLimits) -> None:
        place = CGROUPS / dict(_memberships())[""].lstrip("/")
        if place.name != DELEGATED:
            raise LookupError(place.name)
        (place.parent / "cgroup.subtree_control").write_text("+memory +pids")
        remove_old(place.parent)
        self.own = place
        self.folder = place.parent / _new_name()
        self.folder.mkdir()
        for name, value in (
            ("memory.max", limits.memory_bytes),
            ("memory.swap.max", 0),
            ("memory.oom.group", 1),
            ("pids.max", limits.processes + 8),
        ):
            (self.folder / name).write_text(str(value))

    def prefix(self) -> list[str]:
        return []

    def inside(self) -> contextlib.AbstractContextManager[None]:
        return _moved((self.folder, self.own))

    def hold(self, pid: int) -> None:
        (self.folder / "cgroup.procs").write_text(str(pid))

    def exceeded(self) -> bool:
        return _field(self.folder / "memory.events", "oom_kill") > 0

    def peak_bytes(self) -> int | None:
        return _number(self.folder / "memory.peak")

    def pids(self) -> list[int]:
        return _pids(self.folder)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            (self.folder / "cgroup.kill").write_text("1")
        _remove(self.folder)


class CgroupV1:
    """Cgroups of root in the hierarchies `memory` and `pids`, below our own."""

    kind = MemoryGuard.CGROUP_V1

    def __init__(self, limits: SandboxLimits) -> None:
        name = _new_name()
        paths = dict(_memberships())
        self.memory, self.tasks = (
            CGROUPS / controller / paths[controller].lstrip("/") / name for controller in _V1
        )
        for folder in (self.memory, self.tasks):
            remove_old(folder.parent)
        self.memory.mkdir()
        try:
            self.tasks.mkdir()
            (self.memory / "memory.limit_in_bytes").write_text(str(limits.memory_bytes))
            swap = self.memory / "memory.memsw.limit_in_bytes"
            if swap.exists():
                swap.write_text(str(limits.memory_bytes))
            (self.tasks / "pids.max").write_text(str(limits.processes + 8))
        except OSError:
            self.close()
            raise

    def prefix(self) -> list[str]:
        return []

    def inside(self) -> contextlib.AbstractContextManager[None]:
        return _moved(*((folder, folder.parent) for folder in (self.memory, self.tasks)))

    def hold(self, pid: int) -> None:
        for folder in (self.memory, self.tasks):
            (folder / "cgroup.procs").write_text(str(pid))

    def exceeded(self) -> bool:
        return _field(self.memory / "memory.oom_control", "oom_kill") > 0

    def peak_bytes(self) -> int | None:
        return _number(self.memory / "memory.max_usage_in_bytes")

    def pids(self) -> list[int]:
        return _pids(self.memory)

    def close(self) -> None:
        for folder in (self.memory, self.tasks):
            _remove(folder)


class SystemdScope:
    """A scope of the user's systemd. Not yet run."""

    kind = MemoryGuard.SYSTEMD_RUN

    def __init__(self, limits: SandboxLimits) -> None:
        self.limits = limits
        self.folder: Path | None = None

    def prefix(self) -> list[str]:
        runtime = f"/run/user/{os.geteuid()}"
        command = ["/usr/bin/env", f"XDG_RUNTIME_DIR={runtime}"]
        command += [f"DBUS_SESSION_BUS_ADDRESS=unix:path={runtime}/bus"]
        command += ["systemd-run", "--user", "--scope", "--quiet", "--collect"]
        command += ["-p", f"MemoryMax={self.limits.memory_bytes}", "-p", "MemorySwapMax=0"]
        command += ["-p", f"TasksMax={self.limits.processes + 8}", "--"]
        # bubblewrap's own variables can be read inside, in /proc/1/environ.
        return [*command, "/usr/bin/env", "-i"]

    def inside(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def hold(self, pid: int) -> None:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        path = next(line.split(":", 2)[2] for line in lines if line.startswith("0::"))
        self.folder = CGROUPS / path.lstrip("/")

    def exceeded(self) -> bool:
        return self.folder is not None and _field(self.folder / "memory.events", "oom_kill") > 0

    def peak_bytes(self) -> int | None:
        return _number(self.folder / "memory.peak") if self.folder is not None else None

    def pids(self) -> list[int]:
        return _pids(self.folder) if self.folder is not None else []

    def close(self) -> None:
        """systemd removes the scope with its last process."""


class Watcher:
    """Adds up the memory of the sandbox's processes and folders, 50 times a second.

    What is allocated between two looks goes beyond the limit.
    """

    kind = MemoryGuard.WATCHER

    def __init__(self, limits: SandboxLimits) -> None:
        self.limit = limits.memory_bytes
        self.pid: int | None = None
        self.highest: int | None = None

    def prefix(self) -> list[str]:
        return []

    def inside(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def hold(self, pid: int) -> None:
        self.pid = pid

    def exceeded(self) -> bool:
        if self.pid is None:
            return False
        pids = self.pids()
        folders = sum(used for used, _ in folder_use(self.pid))
        total = folders + sum(resident_bytes(pid) or 0 for pid in pids)
        if total > self.limit:
            # Pages that processes share were counted for each; the exact sum is slow to read.
            total = folders + sum(map(_proportional_bytes, pids))
        self.highest = max(self.highest or 0, total)
        return total > self.limit

    def peak_bytes(self) -> int | None:
        return self.highest

    def pids(self) -> list[int]:
        return [] if self.pid is None else [self.pid, *descendants(self.pid)]

    def close(self) -> None:
        """Nothing was made."""


def folder_use(pid: int) -> Iterator[tuple[int, int]]:
    """The bytes and files of each folder in memory of the sandbox whose first process this is.

    Until bubblewrap has mounted the sandbox's own, a path leads to the folder of this machine,
    which may be in memory, too: what others keep there does not count.
    """
    for folder in _FOLDERS:
        with contextlib.suppress(OSError):
            inside = Path(f"/proc/{pid}/root/{folder}")
            if inside.stat().st_dev == _device_of(Path("/") / folder):
                continue
            usage = os.statvfs(inside)
            yield (usage.f_blocks - usage.f_bfree) * usage.f_frsize, usage.f_files - usage.f_ffree


def _device_of(folder: Path) -> int | None:
    """The file system of a folder of this machine; None without it."""
    try:
        return folder.stat().st_dev
    except OSError:
        return None


def _memberships() -> Iterator[tuple[str, str]]:
    """The controllers of this process's cgroups ("" is version 2) and their paths, cgroups(7)."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            yield controller, path


def _proportional_bytes(pid: int) -> int:
    return field_bytes(pid, "smaps_rollup", "Pss") or resident_bytes(pid) or 0


def _field(file: Path, name: str) -> int:
    with contextlib.suppress(OSError):
        for line in file.read_text().splitlines():
            if line.split()[0] == name:
                return int(line.split()[1])
    return 0


def _number(file: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(file.read_text())
    return None


def _pids(folder: Path) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(line) for line in (folder / "cgroup.procs").read_text().split()]
    return []


def _new_name() -> str:
    """The name of a new cgroup, with the process that is to remove it."""
    return f"compilewatch-{os.getpid()}-{uuid.uuid4().hex}"


@contextlib.contextmanager
def _moved(*pairs: tuple[Path, Path]) -> Iterator[None]:
    """Move this process into the first cgroup of each pair, and back into the second."""
    try:
        for there, _ in pairs:
            (there / "cgroup.procs").write_text(str(os.getpid()))
        yield
    finally:
        for _, back in pairs:
            (back / "cgroup.procs").write_text(str(os.getpid()))


def clean_up() -> None:
    """End what supervisors left that were killed before they could."""
    with contextlib.suppress(OSError, LookupError):
        known = dict(_memberships())
        places = [
            CGROUPS / controller / known[controller].lstrip("/")
            for controller in _V1
            if controller in known
        ]
        for place in (*places, (CGROUPS / known.get("", "/").lstrip("/")).parent):
            remove_old(place)


def remove_old(place: Path) -> None:
    """End and remove the sandboxes of a cgroup whose supervisors have ended."""
    for folder in place.glob("compilewatch-*-*"):
        if is_alive(folder.name.split("-")[1]):
            continue
        for pid in _pids(folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _remove(folder)


def _remove(folder: Path) -> None:
    """Remove a cgroup, which the kernel rejects for a moment after the end of its processes."""
    for _ in range(100):
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(TICK_SECONDS)
        else:
            return
