"""Names, command lines and frames of the sandbox."""

import json
import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compilewatch.errors import SandboxError, UsageError
from compilewatch.extras.executor import sandbox
from compilewatch.extras.executor.sandbox import policy
from compilewatch.extras.executor.sandbox.supervisor import folder_use, is_name, parsed

PYTHON = "/opt/venv/bin/python"


def frames(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def header(**values: object) -> bytes:
    return json.dumps({"status": 0, "files": [], "left_out": 0, **values}).encode()


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "../x", "/x", "a/../b", "a//b", "a/", ".x", "a/.x", "a b", "a\n", "a\0"),
        *("é", "x" * 101, "/".join("a" * 9), "x/" * 50 + "x"),
    ],
)
def test_no_names_of_files(name: str) -> None:
    assert all(map(is_name, ("a", "main.py", "a/b/c.txt", "model-1+x_2.ntff")))
    assert not is_name(name)
    with pytest.raises(UsageError, match="cannot be run"):
        sandbox.planned(["python"], files={name: b""})


def test_what_is_visible_is_so_once_and_cannot_be_written_and_holds_no_secrets() -> None:
    run = sandbox.planned(["python"], python=PYTHON, visible=["/data/sets", "/data/sets/a"])
    options = policy.arguments(run, ["true"], seccomp_fd=3, info_fd=4, block_fd=5)
    assert not {"--bind", "--dev-bind"} & set(options)
    shown = [options[n + 2] for n, option in enumerate(options) if option == "--ro-bind"]
    assert shown.count("/data/sets") == 1
    assert "/opt/venv" in shown
    assert "/data/sets/a" not in shown
    assert options.index("/tmp") < options.index("/opt/venv")
    for path in ("/", "/proc", "/root", "/home", "/etc", "/tmp"):
        run = sandbox.planned(["python"], python=PYTHON, visible=[path])
        with pytest.raises(SandboxError, match="cannot be visible"):
            policy.visible_paths(run)


def test_packages_that_environments_share_are_visible(tmp_path: Path) -> None:
    """As scripts/setup.sh makes it for the workspaces of an agent."""
    environment = tmp_path / "cache" / "shared" / "0123"
    for folder in (environment / "bin", tmp_path / "workspace" / ".venv" / "bin"):
        folder.mkdir(parents=True)
    venv = tmp_path / "workspace" / ".venv"
    (venv / "bin" / "python").touch()
    run = sandbox.planned(["python"], python=str(venv / "bin" / "python"))
    assert str(environment) not in policy.visible_paths(run)
    (venv / "shared").symlink_to(environment)
    assert {str(environment), str(venv)} <= set(policy.visible_paths(run))


def test_a_device_is_mounted_before_its_folder_becomes_read_only() -> None:
    run = msgspec.structs.replace(sandbox.planned(["x"]), devices=("/dev/neuron0",))
    options = policy.arguments(run, ["true"], seccomp_fd=3, info_fd=4, block_fd=5)
    at = options.index("--dev-bind")
    assert options[at : at + 3] == ["--dev-bind", "/dev/neuron0", "/dev/neuron0"]
    assert at < options.index("/dev", options.index("--remount-ro"))
    assert policy.filter_program(any_ioctl=True) != policy.filter_program()


def test_returned_files_are_read_but_for_one_whose_name_leads_elsewhere() -> None:
    data = frames(b"{}", header(files=["a.txt", "../../x", "b/c"]), b"one", b"none", b"two")
    assert parsed(data, 10, 100)[1] == {"a.txt": b"one", "b/c": b"two"}


@pytest.mark.parametrize(
    "data",
    [
        frames(b"{}", b"[]"),
        frames(b"{}", header(files=["a"])),
        frames(b"{}", header(files=["a"]), b"x" * 101),
        frames(b"{}", header(files=["a"] * 11), *[b"x"] * 11),
        frames(b"{}", header(extra=1)),
        frames(b"{}", header(status=2**40)),
        b"\xff\xff\xff\xff",
    ],
)
def test_what_is_no_result_is_none(data: bytes) -> None:
    assert parsed(data, 10, 100) == (None, {})


@given(st.binary(max_size=200))
def test_any_bytes_can_be_returned(data: bytes) -> None:
    parsed(data, 10, 100)
    parsed(frames(b"{}") + data, 10, 100)


@pytest.mark.parametrize(
    ("message", "apparmor", "advice"),
    [
        ("No permissions to create new namespace, likely because ...", False, "user namespaces"),
        ("setting up uid map: Permission denied", False, "user namespaces"),
        ("Can't find source path /x: No such file", False, "does not start: Can't find source"),
        ("loopback: Failed RTM_NEWADDR", True, "apparmor_parser -r"),
    ],
)
def test_the_messages_of_bubblewrap_become_advice(
    message: str, apparmor: bool, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "exists", lambda _: apparmor)
    assert advice in policy.advice(message)
    monkeypatch.setattr(policy, "LIBRARY", "libnothing.so.9")
    with pytest.raises(SandboxError, match="sudo apt install libseccomp2"):
        policy.load()


def test_a_folder_of_this_machine_is_no_folder_of_a_sandbox() -> None:
    """As /proc shows it until bubblewrap has mounted the sandbox's own."""
    assert list(folder_use(os.getpid())) == []
