"""Hostile scripts. Each prints SUCCEEDED if it did harm; all are bounded, for the open run.

A script finds in `world` what the test planted for it (`conftest.world`).
"""

from __future__ import annotations

PRELUDE = """
import ctypes, json, os, signal, socket, sys, time
world = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)

def succeeded(what=True):
    if what:
        print("SUCCEEDED", flush=True)

def call(number, *arguments):
    return libc.syscall(number, *arguments)
"""

ATTACKS: dict[str, str] = {
    "read the variables of the service": """
for pid in [p for p in os.listdir("/proc") if p.isdigit()]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            if world["secret"].encode() in file.read():
                succeeded()
                break
    except OSError:
        pass
""",
    "read the credentials of the user": """
with open(world["credentials"]) as file:
    succeeded("aws_secret" in file.read())
""",
    "read the source of the service": """
with open(world["source"]) as file:
    succeeded(file.read())
""",
    "read the descriptors of the process that started it": """
succeeded(os.listdir(f"/proc/{os.getppid()}/fd"))
""",
    "connect to a TCP port of this machine": """
with socket.create_connection(("127.0.0.1", world["tcp"]), 2) as connection:
    succeeded(connection.recv(2) == b"hi")
""",
    "send a datagram": """
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as connection:
    connection.settimeout(2)
    connection.sendto(b"ping", ("127.0.0.1", world["udp"]))
    succeeded(connection.recv(2) == b"hi")
""",
    "connect to an abstract socket": """
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect("\\0" + world["abstract"])
    succeeded(connection.recv(2) == b"hi")
""",
    "connect to a socket in a folder": """
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(world["socket"])
    succeeded(connection.recv(2) == b"hi")
""",
    "make a socket of the virtual machine": """
socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).close()
succeeded()
""",
    "write outside": """
for folder in (world["folder"], "/", "/etc", "/usr", "/dev", "/work", sys.prefix, "/proc/sys"):
    path = f"{folder}/{world['shm']}"
    if folder != world["folder"] and os.path.exists(world["folder"]):
        break  # without the sandbox, only in the folder that was made for it
    try:
        with open(path, "w"):
            succeeded()
    except OSError:
        pass
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
    "take 300 MB of private memory": """
held = bytearray(300 << 20)
succeeded(len(held))
""",
    "take 300 MB of shared memory": """
import mmap
held = mmap.mmap(-1, 300 << 20)
for place in range(0, 300 << 20, 4096):
    held[place] = 1
succeeded()
""",
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
    "make 5000 files": """
folder = world["folder"] if os.path.isdir(world["folder"]) else "/tmp"
for number in range(5_000):
    with open(f"{folder}/{world['shm']}-{number}", "w"):
        pass
time.sleep(2)  # the supervisor counts files only now and then
succeeded()
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
    "trace a process": """
succeeded(libc.ptrace(16, world["victim"], 0, 0) == 0)
""",
    "kill a process": """
os.kill(world["victim"], signal.SIGKILL)
succeeded()
""",
    "leave shared memory behind": """
with open(f"/dev/shm/{world['shm']}", "w"):
    succeeded()
""",
    "leave a segment of System V behind": """
identifier = libc.shmget(world["sysv"], 4096, 0o1600)
succeeded(identifier >= 0)
""",
    "make a user namespace": """
succeeded(libc.unshare(0x10000000) == 0)
""",
    "use io_uring": """
parameters = ctypes.create_string_buffer(256)
succeeded(call(425, 4, parameters) >= 0)
""",
    "use the kernel's keys": """
succeeded(call(248, b"user", b"compilewatch", b"x", ctypes.c_size_t(1), -1) >= 0)
""",
    "read the metadata of the instance": """
with socket.create_connection(("169.254.169.254", world["imds"]), 2) as connection:
    succeeded(connection.recv(2) == b"hi")
""",
}
