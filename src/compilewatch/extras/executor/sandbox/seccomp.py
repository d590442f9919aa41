"""The system call filter of the sandbox, made by libseccomp and exported as a BPF program.

The filter lists what is allowed: every system call that this libseccomp knows by name, except those
below. A newer kernel's calls do not exist for sandboxed code (ENOSYS) until libseccomp knows them.
"""

from __future__ import annotations

import ctypes
import errno
import tempfile
from collections.abc import Iterator

from compilewatch.errors import SandboxError

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


def program(*, any_ioctl: bool = False) -> bytes:
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
        raise SandboxError(
            f"unreviewed code cannot be confined: {LIBRARY} is missing: "
            "sudo apt install libseccomp2"
        ) from None
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
