"""What is own code, and how a statement is named whatever line it is at."""

from pathlib import Path

import pytest

from compilewatch.extras.gate import own_code

SOURCE = """
class Net:
    @decorated
    def forward(self, x):
        def inner():
            return 1
        return (
            x)

def free():
    return 2
"""


def test_a_statement_is_named_with_its_function_and_class(tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(SOURCE)
    statements = [own_code.statement_at(str(path), line, "f")[:3] for line in (3, 4, 6, 8, 11)]
    assert [function for function, _, _ in statements[:2]] == ["Net.forward"] * 2
    assert statements[2:] == [
        ("Net.forward.inner", "return 1", 6),
        ("Net.forward", "return x", 7),
        ("free", "return 2", 11),
    ]
    unknown = own_code.statement_at(str(tmp_path / "none.py"), 3, "forward", "x = 1")
    assert unknown == ("forward", "x = 1", 3, None)


def write(path: Path, text: str = "x = 1\n") -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def test_own_code_lies_in_the_clone_or_is_installed_from_it(tmp_path: Path) -> None:
    clone, site = tmp_path / "clone", tmp_path / "site-packages"
    root = clone / "apps" / "one"
    (clone / ".git").mkdir(parents=True)
    for name in ("apps/one/pyproject.toml", "libs/b/pyproject.toml", "apps/one/src/mine/net.py"):
        write(clone / name)
    write(clone / "libs/b/src/sibling/net.py", "# A comment.\nx = 1\n")
    write(clone / "third_party/copied/a.py", "another = 1\n")
    files = {
        "net.py": write(root / "tests" / "net.py"),
        "mine/net.py": write(site / "mine" / "net.py"),
        "sibling/net.py": write(site / "sibling" / "net.py"),
        "copied/a.py": write(site / "copied" / "a.py"),
        "timm/a.py": write(root / ".venv" / "site-packages" / "timm" / "a.py"),
        "named/b.py": write(site / "named" / "b.py"),
        "other/c.py": write(tmp_path / "other" / "c.py"),
    }
    own = own_code.OwnCode(root=root, packages=("named",))
    lines = {file: own.line(file, 1, files) for file in files}
    assert {file: (at.file, at.line, at.stale) for file, at in lines.items() if at} == {
        "net.py": ("tests/net.py", 1, False),
        "mine/net.py": ("src/mine/net.py", 1, False),
        "sibling/net.py": ("../../libs/b/src/sibling/net.py", 2, True),
        "named/b.py": ("named/b.py", 1, False),
    }


def test_files_that_another_process_named_are_found_without_importing_them(tmp_path: Path) -> None:
    net = tmp_path / "src" / "mypkg" / "net.py"
    net.parent.mkdir(parents=True)
    net.write_text("raise RuntimeError('imported')\n")
    places = own_code.located(
        ["mypkg/net.py", "msgspec/json.py", "gone/x.py"], own_code.source_folders(tmp_path)
    )
    assert places["mypkg/net.py"] == str(net)
    assert places["msgspec/json.py"].endswith("site-packages/msgspec/json.py")
    assert "gone/x.py" not in places


# What refactorings of a suite of models do is in `test_false_alarms.py`.
SAME = {
    "if total > 0:": "the_total = x\n    if the_total > 0: pass",  # renamed
    # renamed, and named as an attribute that stays
    "y = torch.cat(arange(x))": "row = partial(torch.arange)\n    y = torch.cat(row(x))",
    "if positive:": "if x.sum() > 0: pass",  # inlined
    "if x > 0:": "if x > LIMIT: pass",  # a constant was named
    "if 0 < x.sum():": "if x.sum() > 0: pass",
    "print(f'{total} done')": "print(f'{x} done')",
}
OTHERS = [
    ("if x.sum() > 0:", "if x.any(): pass"),
    ("if x > 0:", "if x.max() > 0: pass"),
    ("if x.sum() > 0:", "if x.max() > 3: pass"),
    ("if x.sum() > 0:", "x = torch.where(x.sum() > 0, x, y)\n    if y.sum() > 0: pass"),
    ("print('a')", "print('b')"),
    ("print('a')", "print(x)"),
    ("n = x.item()", "m = x.max().item()"),
    ("if x.sum() > 0:", "y = x.max()\n    if y > 0: pass"),
]


@pytest.mark.parametrize("same", [True, False])
def test_a_known_statement_is_found_by_what_it_does_and_another_is_not(
    tmp_path: Path, same: bool
) -> None:
    for number, (known, body) in enumerate(SAME.items() if same else OTHERS):
        path = tmp_path / f"net_{number}.py"
        path.write_text(f"def f(x, y):\n    {body}\n")
        _, text, _, node = own_code.statement_at(str(path), 1 + len(body.splitlines()), "f")
        assert own_code.same_statement(known, text, node) is same, (known, body)


def test_a_moved_statement_may_have_other_names_only() -> None:
    assert own_code.same_shape("if self.limit > x.sum():", "if limit > y.sum():")
    assert not own_code.same_shape("if x.sum() > 0:", "if x.max() > 0:")
    assert not own_code.same_shape("print('a')", "print('b')")
