"""What is own code, and how a function is named whatever line it is at."""

from __future__ import annotations

from pathlib import Path

from compilewatch.extras.gate.places import located, own_path, qualified, source_folders

SOURCE = """
class Net:
    @decorated
    def forward(self, x):
        def inner():
            return 1
        return x

def free():
    return 2
"""


def test_a_function_is_named_with_its_class(tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(SOURCE)
    names = [qualified(str(path), line, "f") for line in (3, 4, 6, 7, 10)]
    assert names == ["Net.forward", "Net.forward", "Net.forward.inner", "Net.forward", "free"]
    assert qualified(str(tmp_path / "none.py"), 3, "forward") == "forward"


def test_own_code_lies_in_the_repository_and_is_not_installed(tmp_path: Path) -> None:
    files = {
        "net.py": str(tmp_path / "src" / "net.py"),
        "timm/a.py": str(tmp_path / ".venv" / "lib" / "site-packages" / "timm" / "a.py"),
        "mine/b.py": "/usr/lib/python3/dist-packages/mine/b.py",
        "other/c.py": "/elsewhere/other/c.py",
    }
    paths = {file: own_path(file, files, tmp_path, ("mine",)) for file in files}
    assert paths == {
        "net.py": "src/net.py",
        "timm/a.py": None,
        "mine/b.py": "mine/b.py",
        "other/c.py": None,
    }


def test_files_that_another_process_named_are_found_without_importing_them(tmp_path: Path) -> None:
    net = tmp_path / "src" / "mypkg" / "net.py"
    net.parent.mkdir(parents=True)
    net.write_text("raise RuntimeError('imported')\n")
    found = located(["mypkg/net.py", "msgspec/json.py", "gone/x.py"], source_folders(tmp_path))
    assert found["mypkg/net.py"] == str(net)
    assert found["msgspec/json.py"].endswith("site-packages/msgspec/json.py")
    assert "gone/x.py" not in found
