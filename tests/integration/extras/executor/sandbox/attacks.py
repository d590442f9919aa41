"""Hostile scripts. Each calls `succeeded` if it did harm; all are bounded, for the open run.

A script finds in `world` what the test planted for it (`conftest.world`).
"""

from collections.abc import Mapping

PRELUDE = """
import ctypes, json, mmap, os, signal, socket, sys, time
world = json.loads((sys.argv + ["{}"])[1])
libc = ctypes.CDLL(None, use_errno=True)
call, first, name = libc.syscall, os.getppid(), ""

def succeeded(what=True):
    if what:
        print("SUCCEEDED", name, flush=True)

def tried(action):
    try:
        succeeded(action())
    except (OSError, ValueError):
        pass

def greeted(family, address, kind=socket.SOCK_STREAM):
    with socket.socket(family, kind) as connection:
        connection.settimeout(2)
        connection.connect(address)
        if kind == socket.SOCK_DGRAM:
            connection.send(b"ping")
        succeeded(connection.recv(2) == b"hi")

def attempt(script):
    if os.fork() == 0:
        try:
            exec(script, globals())
        except BaseException as error:
            print(name, repr(error), file=sys.stderr)
        os._exit(0)
    os.wait()
"""


def together(scripts: Mapping[str, str]) -> str:
    """One program that runs each script in a process of its own; a success has its name."""
    calls = (f"name = {name!r}\nattempt({script!r})\n" for name, script in scripts.items())
    return PRELUDE + "".join(calls)


ATTACKS: dict[str, str] = {
    "read the variables of the service": """
for pid in [p for p in os.listdir("/proc") if p.isdigit()]:
    tried(lambda: world["secret"].encode() in open(f"/proc/{pid}/environ", "rb").read())
""",
    "trace a process": 'succeeded(libc.ptrace(16, world["victim"], 0, 0) == 0)',
    "kill a process": 'os.kill(world["victim"], signal.SIGKILL)\nsucceeded()',
    "read the credentials of the user": 'succeeded("aws_" in open(world["credentials"]).read())',
    "read the source of the service": 'succeeded(open(world["source"]).read())',
    "read the descriptors of who started it": 'succeeded(os.listdir(f"/proc/{first}/fd"))',
    "connect to a TCP port of this machine": "greeted(socket.AF_INET, ('127.0.0.1', world['tcp']))",
    "send a datagram": """
greeted(socket.AF_INET, ("127.0.0.1", world["udp"]), socket.SOCK_DGRAM)
""",
    "connect to an abstract socket": 'greeted(socket.AF_UNIX, "\\0" + world["abstract"])',
    "connect to a socket in a folder": 'greeted(socket.AF_UNIX, world["socket"])',
    "make a socket of the virtual machine": """
socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).close()
succeeded()
""",
    "write outside": """
for folder in (world["folder"], "/", "/etc", "/usr", "/dev", "/work", sys.prefix, "/proc/sys"):
    if folder != world["folder"] and os.path.exists(world["folder"]):
        break  # without the sandbox, only in the folder that was made for it
    tried(lambda: open(f"{folder}/{world['shm']}", "w"))
""",
    "start 200 processes": """
children = []
try:
    for _ in range(200):
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            signal.pause()
            os._exit(0)
        children.append(child)
    succeeded()
except OSError:
    pass
finally:
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
""",
    "take 300 MB of private memory": "succeeded(bytearray(300 << 20))",
    "take 300 MB by a file in memory": """
block = bytes(10 << 20)
for number in range(30):
    os.write(os.memfd_create(f"held-{number}"), block)
succeeded()
""",
    "take 300 MB of disk": """
block = bytes(1 << 20)
for folder in (world["folder"], "/job", "/tmp", "/dev/shm"):
    if not os.path.isdir(folder):
        continue
    path = f"{folder}/{world['shm']}-large"
    try:
        with open(path, "wb", buffering=0) as file:
            for _ in range(300):
                file.write(block)
        succeeded()
    except OSError:
        pass
    os.unlink(path)
    if folder == world["folder"]:
        break
""",
    "make a user namespace": "succeeded(libc.unshare(0x10000000) == 0)",
    "use io_uring": "succeeded(call(425, 4, ctypes.create_string_buffer(256)) >= 0)",
    "use the kernel's keys": """
succeeded(call(248, b"user", b"compilewatch", b"x", ctypes.c_size_t(1), -1) >= 0)
""",
    "leave shared memory behind": """
with open(f"/dev/shm/{world['shm']}", "w"):
    succeeded()
""",
    "leave a segment of System V behind": """
succeeded(libc.shmget(world["sysv"], 4096, 0o1600) >= 0)
""",
    "leave a process behind": """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 3)
        os.execv("/usr/bin/python3", ["python3", "-c", "import time; time.sleep(30)", world["shm"]])
    os._exit(0)
os.wait()
time.sleep(0.5)
succeeded()
""",
}
"""Scripts that do harm without the sandbox and none inside. The last three leave something behind:
that is the harm, and not what they print.
"""

METADATA = {
    "read the metadata of the instance": "greeted(socket.AF_INET, ('169.254.169.254', 80))",
}
"""The same, for a network in which the metadata service answers."""

INSIDE: dict[str, str] = {
    "run a program from a file in memory": 'succeeded(call(319, b"x", 0) >= 0)',
    "run a program that has no name": """
descriptor = os.open("/tmp", os.O_TMPFILE | os.O_RDWR, 0o700)
os.write(descriptor, b"#!/bin/sh\\necho SUCCEEDED\\n")
os.fchmod(descriptor, 0o4755)
os.setuid(0)
succeeded()
""",
    "raise a limit": """
import resource
for kind in (resource.RLIMIT_NPROC, resource.RLIMIT_NOFILE, resource.RLIMIT_DATA):
    hard = resource.getrlimit(kind)[1]
    tried(lambda: resource.setrlimit(kind, (hard + 1, hard + 1)) is None)
""",
    "get a higher priority": """
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
succeeded()
""",
    "write what the kernel reads of /proc": """
for path in ("sys/kernel/core_pattern", "sysrq-trigger", "sys/vm/overcommit_memory",
             "self/uid_map", "self/setgroups", "1/ns/mnt", "2/mem", "2/oom_score_adj"):
    tried(lambda: open(f"/proc/{path}", "r+b", buffering=0).write(b"0"))
""",
    "reach a file of the first program": """
for path in ("root/etc", "cwd", "fd", "map_files"):
    tried(lambda: os.listdir(f"/proc/{first}/{path}"))
for path in ("mem", "environ", "maps", "stack"):
    tried(lambda: open(f"/proc/{first}/{path}", "rb").read(4096))
""",
    "find a process with rights to take over": """
for pid in [p for p in os.listdir("/proc") if p.isdigit()]:
    with open(f"/proc/{pid}/status") as file:
        fields = dict(line.rstrip().split(":", 1) for line in file)
    rights = [fields[name].strip() for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")]
    succeeded(any(right.strip("0") for right in rights))
    succeeded(fields["Seccomp"].strip() != "2" or fields["NoNewPrivs"].strip() != "1")
""",
    "take a descriptor of another process": """
for pid in (1, 2):
    descriptor = call(434, pid, 0)
    if descriptor >= 0:
        succeeded(call(438, descriptor, 1, 0) >= 0)
""",
    "use userfaultfd, perf events and BPF": """
for number, arguments in ((323, (0,)), (298, (b"\\0" * 128, 0, -1, -1, 0)), (321, (0, 0, 0))):
    succeeded(call(number, *arguments) >= 0)
""",
    "forge a result": """
frame = (2).to_bytes(4, "big") + b"{}"
for pid in (1, 2, first):
    for descriptor in range(3, 20):
        tried(lambda: open(f"/proc/{pid}/fd/{descriptor}", "wb", buffering=0).write(frame))
""",
}
"""Scripts that run inside only, and are refused there."""

SHARED, FILES = "take 300 MB of shared memory", "make 5000 files"

ENDED: dict[str, str] = {
    SHARED: """
held = mmap.mmap(-1, 300 << 20)
for place in range(0, 300 << 20, 4096):
    held[place] = 1
succeeded()
""",
    FILES: """
folder = world["folder"] if os.path.isdir(world["folder"]) else "/tmp"
for number in range(5_000):
    with open(f"{folder}/{world['shm']}-{number}", "w"):
        pass
time.sleep(2)  # the supervisor counts files only now and then
succeeded()
""",
    "a grandchild of 600 seconds": """
with open("out/begun", "w") as file:
    file.write("yes")
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
time.sleep(600)
""",
    "a storm of processes": """
while True:
    try:
        if os.fork() == 0:
            os.setsid()
    except OSError:
        pass
""",
    "the first process stopped": "os.kill(first, signal.SIGSTOP)\ntime.sleep(60)",
    "300 MB in the buffers of sockets": """
pairs, block = [], bytes(1 << 16)
total = 0
while total < 300 << 20:
    for descriptor in range(200):
        try:
            pair = socket.socketpair()
            pairs.append(pair)
            pair[0].setblocking(False)
            while True:
                total += pair[0].send(block)
        except OSError:
            continue
    if os.fork():
        time.sleep(30)
    pairs = []
succeeded()
""",
    "300 MB in extended attributes": """
total = 0
try:
    for number in range(900):
        with open(f"/tmp/{number}", "w"):
            pass
        for attribute in range(60):
            os.setxattr(f"/tmp/{number}", f"user.{attribute}", bytes(60000))
            total += 60000
            succeeded(total > 300 << 20)
except OSError as error:
    print(error, total, flush=True)
time.sleep(30)
""",
}
"""Scripts that a limit ends, each in a sandbox of its own. The first two do harm without it."""

STRANGE = """
os.makedirs("out", exist_ok=True)
names = ["\\x1b[2Jcleared", "x" * 255, "a\\nb", "..", "\\udcff", "-rf", "good.txt", "\\u202e.txt"]
for name in [*names, ".hidden", "with space"]:
    try:
        with open(os.fsencode("out/" + name), "w") as file:
            file.write("x")
    except (OSError, ValueError):
        pass
with open("out/sparse", "wb") as file:
    file.truncate(10 << 20)
place = os.open("out", os.O_RDONLY)
for _ in range(600):  # 2,400 bytes of path in 8 levels, and 150,000 in 600
    os.mkdir("d" * 250, dir_fd=place)
    above, place = place, os.open("d" * 250, os.O_RDONLY, dir_fd=place)
    os.close(above)
with open(os.open("deep", os.O_CREAT | os.O_WRONLY, dir_fd=place), "w") as file:
    file.write("x")
os.symlink("/proc/1/environ", "out/environ")
os.link("attack.py", "out/hard.py")
try:
    os.mkfifo("out/pipe")
except OSError:
    pass
print("\\x1b]0;title\\x07\\x1b[31mred")
print("x" * 2**17)
"""
"""Leaves files with names that no file outside may have, and prints more than is kept."""

SWAPPED = """
os.makedirs("out/inner", exist_ok=True)
with open("out/inner/file.txt", "w") as file:
    file.write("mine")
os.rename("out", "away")
os.symlink("/usr/share", "out")
"""
"""Makes a link of the folder of results."""
