"""What sandboxed code may have: limits, files (bubblewrap) and system calls (seccomp)."""

import ctypes
import errno
import os
import pwd
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from compilewatch.errors import SandboxError
from compilewatch.records import Record

Name = Annotated[
    str,
    Meta(
        pattern=r"^(?!.*(^|/)\.)[A-Za-z0-9._+-]{1,100}(/[A-Za-z0-9._+-]{1,100}){0,7}\Z",
        max_length=240,
    ),
]
"""A relative path below a job's folder: at most 8 parts, none of which begins with a dot."""

JOB_FOLDER = "/job"
"""The folder of a job inside, in memory; the command starts there, beside its files."""

OUTPUT_FOLDER = "/job/out"
"""What the command leaves here is returned, within the limits."""

MIB = 2**20


class SandboxLimits(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one run may use at most.

    `disk_bytes` limits each of the three folders in memory that can be written (/job, /tmp,
    /dev/shm); what they hold counts as memory too where a cgroup limits it. `log_bytes` limits each
    of stdout and stderr (the rest is dropped), `output_bytes` and `output_files` what is returned
    from `OUTPUT_FOLDER`.
    """

    deadline_seconds: Annotated[float, Meta(gt=0, le=86_400)] = 1800.0
    memory_bytes: Annotated[int, Meta(ge=64 * MIB, le=2**44)] = 8 * 2**30
    processes: Annotated[int, Meta(ge=4, le=4096)] = 64
    open_files: Annotated[int, Meta(ge=32, le=65_536)] = 512
    disk_bytes: Annotated[int, Meta(ge=MIB, le=2**40)] = 1024 * MIB
    disk_files: Annotated[int, Meta(ge=16, le=10_000_000)] = 50_000
    log_bytes: Annotated[int, Meta(ge=1024, le=256 * MIB)] = 4 * MIB
    output_bytes: Annotated[int, Meta(ge=0, le=1024 * MIB)] = 64 * MIB
    output_files: Annotated[int, Meta(ge=0, le=10_000)] = 256


class SandboxEnding(StrEnum):
    """How a run ended. Only `exited` was the command's own doing; the others ended it.

    `not_started`: bubblewrap or the command could not be started, which is our failure, not the
    command's.
    """

    EXITED = "exited"
    DEADLINE = "deadline"
    MEMORY = "memory"
    DISK_FILES = "disk_files"
    CANCELLED = "cancelled"
    NOT_STARTED = "not_started"


class MemoryGuard(StrEnum):
    """What holds a run to its memory limit.

    A cgroup needs root and cgroups of version 1. Elsewhere a watcher adds up what processes and
    folders use 50 times a second, so that what is allocated between two looks exceeds the limit.
    """

    CGROUP_V1 = "cgroup_v1"
    WATCHER = "watcher"


class SandboxOutcome(Record, frozen=True, kw_only=True):
    """How one run ended.

    Measured from outside: `ending`, `duration_seconds`, `peak_memory_bytes`, `survivors` (the
    processes that were left after the end; anything but 0 is a bug). Claims of the code that ran:
    `exit_code` and `signal`. `detail` is one line about the ending.
    """

    ending: SandboxEnding
    detail: str = ""
    exit_code: int | None = None
    signal: int | None = None
    duration_seconds: float = 0.0
    peak_memory_bytes: int | None = None
    memory_guard: MemoryGuard = MemoryGuard.WATCHER
    survivors: int = 0
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    artifacts_left_out: int = 0

    @property
    def succeeded(self) -> bool:
        """Whether the command exited with 0, which says nothing about what it did."""
        return self.ending is SandboxEnding.EXITED and self.exit_code == 0


class SandboxResult(SandboxOutcome, frozen=True, kw_only=True):
    """What became of one run. `stdout`, `stderr` and `files` (path below `OUTPUT_FOLDER` ->
    content) are claims of the code that ran: treat them as hostile data.
    """

    stdout: bytes = b""
    stderr: bytes = b""
    files: dict[str, bytes] = {}


STDOUT, STDERR, RESULT_FILE, LOCK_FILE = "stdout.log", "stderr.log", "result.msgpack", "lock"
"""The files in a run's folder: its streams as they are written, its result, and its lock."""


class SandboxSpec(Record, frozen=True, kw_only=True):
    """One command and all that it gets; what is not named here does not exist inside.

    `command[0]` is an absolute path that `visible` (or /usr) contains. `files` are written below
    `JOB_FOLDER`. `visible` are absolute paths outside that can be read inside, at the same place.
    `devices` are device nodes (Neuron only, see docs/executor.md): they weaken the sandbox.
    `python` runs the first program inside. `folder`, if any, is outside and receives the files that
    `STDOUT` to `LOCK_FILE` name.
    """

    command: tuple[str, ...]
    python: str
    files: dict[Name, bytes] = {}
    variables: dict[str, str] = {}
    visible: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    limits: SandboxLimits = SandboxLimits()
    folder: str | None = None


SEARCHED = "/usr/local/bin:/usr/bin:/bin"

OLDEST = (0, 8)
"""The first version with `--disable-userns`."""

SANDBOX_UID = 65534
"""The user inside: nobody."""

FIRST_FREE_UID = 64_000
"""Where root looks for a user id that nobody has, to run the sandbox with."""

UBUNTU_PROFILE = (
    "sudo apt install apparmor-profiles && sudo install -m644 "
    "/usr/share/apparmor/extra-profiles/bwrap-userns-restrict /etc/apparmor.d/ && "
    "sudo apparmor_parser -r /etc/apparmor.d/bwrap-userns-restrict"
)

NEURON_PATHS = (
    "/sys/class/neuron_device",
    "/sys/devices/virtual/neuron_device",
    "/sys/devices/virtual/dmi/id/product_name",
    "/opt/aws/neuron",
)
"""What the Neuron runtime reads, visible only where a device is."""


def program() -> str:
    """The path of bwrap. Raises SandboxError if it is missing, too old or setuid."""
    path = shutil.which("bwrap", path=SEARCHED)
    install = "sudo apt install bubblewrap"
    if path is None:
        raise SandboxError(f"bubblewrap is missing: {install}")
    path = os.path.realpath(path)
    if os.stat(path).st_mode & (stat.S_ISUID | stat.S_ISGID):
        raise SandboxError(f"{path} is setuid: sudo chmod u-s {path}")
    output = subprocess.run(
        [path, "--version"], capture_output=True, text=True, check=False, env={}, timeout=30
    ).stdout
    version_match = re.search(r"(\d+)\.(\d+)", output)
    if version_match is None or (int(version_match[1]), int(version_match[2])) < OLDEST:
        version = version_match[0] if version_match else "an unknown version"
        oldest = ".".join(map(str, OLDEST))
        raise SandboxError(f"bubblewrap is {version}, and {oldest} is needed: {install}")
    return path


def advice(message: str) -> str:
    """One line about bubblewrap's own error message, with the command that changes it."""
    blocked = ("No permissions to create new namespace", "setting up uid map", "RTM_NEWADDR")
    if any(sign in message for sign in blocked):
        if Path("/sys/kernel/security/apparmor").exists():
            return f"AppArmor denies user namespaces ({message}): {UBUNTU_PROFILE}"
        return (
            f"this system or container denies user namespaces ({message}): set "
            "kernel.unprivileged_userns_clone=1, or run it outside the container"
        )
    return f"bubblewrap does not start: {message}"


def arguments(
    run: SandboxSpec, inner: Sequence[str], *, seccomp_fd: int, info_fd: int, block_fd: int
) -> list[str]:
    """The arguments of bwrap for one run, whose first program is `inner`.

    The order matters: later mounts lie on earlier ones.
    """
    size = str(run.limits.disk_bytes)
    options = ["--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    options += ["--unshare-cgroup-try", "--disable-userns", "--cap-drop", "ALL"]
    options += ["--uid", str(SANDBOX_UID), "--gid", str(SANDBOX_UID), "--hostname", "sandbox"]
    options += ["--new-session", "--die-with-parent", "--clearenv"]
    options += ["--ro-bind", "/usr", "/usr", *_links()]
    for path in ("/etc/ld.so.cache", "/etc/alternatives"):
        options += ["--ro-bind-try", path, path]
    options += ["--proc", "/proc", "--dev", "/dev", "--size", size, "--tmpfs", "/dev/shm"]
    for device in run.devices:
        options += ["--dev-bind", device, device]
    options += ["--remount-ro", "/dev", "--size", size, "--tmpfs", "/tmp"]
    for path in NEURON_PATHS if run.devices else ():
        options += ["--ro-bind-try", path, path]
    for path in visible_paths(run):
        options += ["--ro-bind", os.path.realpath(path), path]
    options += ["--size", size, "--tmpfs", JOB_FOLDER, "--chdir", JOB_FOLDER, "--remount-ro", "/"]
    for name, descriptor in (("seccomp", seccomp_fd), ("info-fd", info_fd), ("block-fd", block_fd)):
        options += [f"--{name}", str(descriptor)]
    return [*options, "--", *inner]


def visible_paths(run: SandboxSpec) -> tuple[str, ...]:
    """The paths to make visible, without those that lie below another or below /usr."""
    candidates = sorted(
        {os.path.abspath(p) for p in (*interpreter_paths(run.python), *run.visible)}
    )
    kept: list[str] = []
    for path in candidates:
        if not any(f"{path}/".startswith(f"{other}/") for other in ("/usr", *kept)):
            kept.append(path)
    for path in kept:
        if path in ("/", "/proc", "/sys", "/dev", "/run", "/etc", "/tmp", "/root", "/home"):
            raise SandboxError(f"{path} cannot be visible in a sandbox: name a folder below it")
    return tuple(kept)


def interpreter_paths(python: str) -> tuple[str, ...]:
    """The folders that an interpreter consists of: its virtual environment and its base.

    A checkout's environment that scripts/setup.sh shares with others has its packages in a further
    folder, to which the environment's `shared` leads.
    """
    programs = (Path(os.path.abspath(python)), Path(os.path.realpath(python)))
    folders = [
        str(path.parent.parent)
        for path in programs
        if path.parent.name == "bin" and path.parent.parent != Path("/")
    ]
    shared = Path(os.path.abspath(python)).parent.parent / "shared"
    if shared.is_symlink():
        folders.append(os.path.abspath(shared.parent / shared.readlink()))
    return tuple(folders)


def dropped_uid() -> int | None:
    """A user id that nobody has, if this process is root's; None for an ordinary user.

    Resource limits do not hold for root, so its sandboxes run as that user.
    """
    if os.geteuid() != 0:
        return None
    taken = {entry.pw_uid for entry in pwd.getpwall()}
    return next(uid for uid in range(FIRST_FREE_UID, 2**16 - 2) if uid not in taken)


def check_readable(paths: Sequence[str], uid: int | None) -> None:
    """Raise SandboxError for a path that the sandbox's user cannot reach."""
    for path in paths:
        real = Path(os.path.realpath(path))
        if not real.exists():
            raise SandboxError(f"{path} is to be visible in a sandbox, but does not exist")
        for part in (real, *real.parents) if uid is not None else ():
            mode = part.stat().st_mode
            needed = 0o005 if part == real and part.is_dir() else 0o004 if part == real else 0o001
            if mode & needed != needed:
                raise SandboxError(
                    f"{path} cannot be read in a sandbox, because {part} belongs to root alone: "
                    "move it to a folder that all can read (such as /opt, with COMPILEWATCH_CACHE "
                    "for environments; an interpreter: rm -rf .venv, PYTHON=/usr/bin/python3 "
                    "make setup), or run compilewatch as an ordinary user"
                )


def _links() -> Iterator[str]:
    """/lib, /bin and so on, which are links into /usr or folders of their own."""
    for name in ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"):
        if os.path.islink(name):
            yield from ("--symlink", os.readlink(name).lstrip("/"), name)
        elif os.path.isdir(name):
            yield from ("--ro-bind", name, name)


LIBRARY = "libseccomp.so.2"

# fmt: off
DENIED = frozenset({
    "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "pidfd_getfd", "kcmp",
    "bpf", "perf_event_open", "userfaultfd", "add_key", "request_key", "keyctl", "mount",
    "umount", "umount2", "mount_setattr", "move_mount", "open_tree", "open_tree_attr", "fsopen",
    "fsconfig", "fsmount", "fspick", "pivot_root", "chroot", "setns", "unshare", "statmount",
    "listmount", "init_module", "finit_module", "delete_module", "kexec_load",
    "kexec_file_load", "reboot", "swapon", "swapoff", "acct", "syslog", "mknod", "mknodat",
    "name_to_handle_at", "open_by_handle_at", "fanotify_init", "io_uring_setup",
    "io_uring_enter", "io_uring_register", "memfd_create", "memfd_secret", "shmget", "shmat",
    "shmctl", "shmdt", "msgget", "msgsnd", "msgrcv", "msgctl", "semget", "semop", "semctl",
    "semtimedop", "ipc", "mq_open", "mq_unlink", "mq_timedsend", "mq_timedreceive", "mq_notify",
    "mq_getsetattr", "personality", "clone3", "socketcall", "modify_ldt", "iopl", "ioperm",
})
# fmt: on
"""Never allowed: they reach other processes, the kernel's rarely tested parts, or memory that no
limit counts."""

CLONE_NEW = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET of sched.h."""

IOCTLS = (
    0x5401,  # TCGETS: isatty()
    0x5413,  # TIOCGWINSZ: the width of a terminal
    0x541B,  # FIONREAD
    0x5421,  # FIONBIO
    0x5450,  # FIONCLEX
    0x5451,  # FIOCLEX
    0x5452,  # FIOASYNC
)
"""The requests of ioctls.h that programs without a device need; TIOCSTI is not among them."""

HIGHEST_NUMBER = 1023

_KILL_PROCESS = 0x80000000
_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000
_EQUAL, _MASKED_EQUAL = 4, 7
_BAD_ARCHITECTURE = 2  # SCMP_FLTATR_ACT_BADARCH
_AF_UNIX = 1


class _Condition(ctypes.Structure):
    """`struct scmp_arg_cmp` of seccomp.h."""

    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


def filter_program(*, any_ioctl: bool = False) -> bytes:
    """Return the filter as an array of `struct sock_filter`, for `bwrap --seccomp`.

    Args:
        any_ioctl: allow every request of ioctl(2), which a device needs.

    Raises SandboxError if libseccomp is missing or rejects a rule.
    """
    library = load()
    context = library.seccomp_init(_ERRNO | errno.ENOSYS)
    if not context:
        raise SandboxError(f"{LIBRARY} cannot make a filter")
    try:
        # The 32-bit calls and the x32 calls of x86-64 have numbers to which no rule applies.
        _check(library.seccomp_attr_set(context, _BAD_ARCHITECTURE, _KILL_PROCESS))
        for number, name in _known(library):
            if name in DENIED:
                continue
            conditions = () if any_ioctl and name == "ioctl" else _conditions(name)
            if not conditions:
                _check(library.seccomp_rule_add_array(context, _ALLOW, number, 0, None))
            for condition in conditions:
                array = (_Condition * 1)(condition)
                _check(library.seccomp_rule_add_array(context, _ALLOW, number, 1, array))
        with tempfile.TemporaryFile() as file:
            _check(library.seccomp_export_bpf(context, file.fileno()))
            file.seek(0)
            return file.read()
    finally:
        library.seccomp_release(context)


def load() -> ctypes.CDLL:
    """Load libseccomp. Raises SandboxError with the command that installs it."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        raise SandboxError(f"{LIBRARY} is missing: sudo apt install libseccomp2") from None
    pointer, number = ctypes.c_void_p, ctypes.c_int
    library.seccomp_init.restype = pointer
    library.seccomp_init.argtypes = (ctypes.c_uint32,)
    library.seccomp_release.argtypes = (pointer,)
    library.seccomp_attr_set.argtypes = (pointer, number, ctypes.c_uint32)
    library.seccomp_rule_add_array.argtypes = (
        pointer, ctypes.c_uint32, number, ctypes.c_uint, ctypes.POINTER(_Condition),
    )  # fmt: skip
    library.seccomp_export_bpf.argtypes = (pointer, number)
    library.seccomp_arch_native.restype = ctypes.c_uint32
    library.seccomp_syscall_resolve_num_arch.restype = pointer
    library.seccomp_syscall_resolve_num_arch.argtypes = (ctypes.c_uint32, number)
    return library


def _conditions(name: str) -> tuple[_Condition, ...]:
    """The conditions of which a call must meet one; none: it is always allowed."""
    if name in ("socket", "socketpair"):  # DataLoader needs these
        return (_Condition(0, _EQUAL, _AF_UNIX, 0),)
    if name == "clone":
        return (_Condition(0, _MASKED_EQUAL, CLONE_NEW, 0),)
    if name == "ioctl":
        return tuple(_Condition(1, _EQUAL, request, 0) for request in IOCTLS)
    return ()


def _known(library: ctypes.CDLL) -> Iterator[tuple[int, str]]:
    """The numbers and names of this machine's system calls."""
    libc = ctypes.CDLL(None)
    libc.free.argtypes = (ctypes.c_void_p,)
    native = library.seccomp_arch_native()
    for number in range(HIGHEST_NUMBER + 1):
        name = library.seccomp_syscall_resolve_num_arch(native, number)
        if name:
            yield number, ctypes.string_at(name).decode()
            libc.free(name)


def _check(status: int) -> None:
    if status < 0:
        raise SandboxError(f"{LIBRARY} rejects a rule of the filter (error {-status})")
