"""The rules of the structure (docs/architecture.md) that `lint-imports` cannot state."""

import ast
import functools
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import compilewatch
from compilewatch import extras
from compilewatch.contract.targets import TARGETS
from compilewatch.launchers import LAUNCHERS
from compilewatch.sinks import SINKS
from compilewatch.sources import PACKAGES, SOURCES

ROOT = Path(compilewatch.__file__).parent
HEAVY = ("torch", "transformers", "numpy", "sympy")
TABLES = {
    "sources": {name: row for name, row in SOURCES.items() if name not in PACKAGES},
    "targets": {name: row.implementation for name, row in TARGETS.items()},
    "launchers": LAUNCHERS,
    "sinks": SINKS,
}
SHARED = ("records", "errors", "extras", "files", "data", "plugins", "contract", "neuron")
"""Packages that the worker may import beside itself."""

WORKER_OF_EXTRAS = {
    "extras.profiles": ("messages", "records", "training", "profiler", "profiling"),
    "extras.papers": (),
    "extras.fixes": ("records", "code"),
    "extras.shapes": ("records", "extras.fixes"),
}
"""What the worker of an extra may import of its extra, beside its own folder."""

WITH_TORCH = {
    "compilewatch.api.check": ["compilewatch.worker.caller.evaluation.evaluate"],
}
"""What the parent imports of the worker when it is called with an object of torch's."""


def modules() -> list[str]:
    """Every module of the package, by dotted name."""
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        parts = ["compilewatch", *path.relative_to(ROOT).with_suffix("").parts]
        found.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return found


def source_of(module: str) -> Path:
    path = ROOT.joinpath(*module.split(".")[1:])
    package = path / "__init__.py"  # a folder of bytecode may be left of one that became a module
    return package if package.exists() else path.with_suffix(".py")


@functools.cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(source_of(module).read_text())


def imports(module: str) -> Iterator[str]:
    """Dotted names that a module imports anywhere, `from a import b` as `a.b`."""
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def package_of(name: str) -> str | None:
    """`worker` of `compilewatch.worker.subject.Subject`; None for what is not ours."""
    parts = name.split(".")
    if parts[0] != "compilewatch" or len(parts) < 2:
        return None
    if parts[1] == "extras" and len(parts) > 2 and (ROOT / "extras" / parts[2]).is_dir():
        return f"extras.{parts[2]}"  # the core reads the table of extras, but imports none
    return parts[1]


def in_worker(module: str) -> bool:
    """A folder `worker` of the core or of an extra."""
    return "worker" in module.split(".")


PARENT = [m for m in modules() if not in_worker(m) and not m.endswith("__main__")]
WORKER = [m for m in modules() if in_worker(m)]


@pytest.mark.process
def test_the_parent_never_imports_torch() -> None:
    """One interpreter imports them one by one and says which brought something heavy along."""
    code = (
        "import importlib, json, sys\n"
        "guilty = {}\n"
        "for name in json.loads(sys.argv[1]):\n"
        "    importlib.import_module(name)\n"
        "    for heavy in json.loads(sys.argv[2]):\n"
        "        if sys.modules.pop(heavy, None): guilty[name] = heavy\n"
        "print(json.dumps(guilty))\n"
    )
    command = [sys.executable, "-c", code, json.dumps(PARENT), json.dumps(HEAVY)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {}


def arrows() -> dict[str, set[str]]:
    """Package -> the packages it imports; a module at the root counts as a package."""
    found: dict[str, set[str]] = {}
    for module in modules():
        package = package_of(module)
        if package is not None and package != "__main__":
            others = {package_of(name) for name in imports(module)} - {None, package, "__version__"}
            found.setdefault(package, set()).update(filter(None, others))
    return found


def test_the_documents_name_every_package_and_every_extra() -> None:
    page = (ROOT.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    core, _, rest = page.partition("\n### The extras\n")
    row = re.compile(r"^\| `(\w+)(?:/|\.py)` \|", re.MULTILINE)
    packages = {name for name in arrows() if not name.startswith("extras.")}
    assert set(row.findall(core)) == packages | {"profiling"}  # it belongs to an extra
    folders = {path.parent.name for path in ROOT.glob("extras/*/__init__.py")}
    assert (
        set(row.findall(rest))
        == folders
        == extras.EXTRAS.keys() - {"publish", "transformers", "gpu"}
    )


def test_the_parent_never_imports_a_worker() -> None:
    found = {
        module: [n for n in imports(module) if n.startswith("compilewatch.") and in_worker(n)]
        for module in PARENT
    }
    assert {module: names for module, names in found.items() if names} == WITH_TORCH


def test_a_worker_imports_only_what_it_shares_with_the_parent() -> None:
    for module in WORKER:
        mine = package_of(module) or ""
        for name in imports(module):
            package = package_of(name)
            if package in (None, "worker", *SHARED):
                continue
            inside = name.partition(f"compilewatch.{mine}.")[2]
            allowed = ("worker", *WORKER_OF_EXTRAS.get(mine, ()))
            assert inside.startswith(allowed) or package in WORKER_OF_EXTRAS.get(mine, ()), (
                module,
                name,
            )


def test_what_the_worker_shares_imports_nothing_else_of_the_parent() -> None:
    for module in modules():
        if package_of(module) in SHARED:
            known = {package_of(name) for name in imports(module)} - {None}
            assert known <= set(SHARED), module


def test_the_profiler_of_training_scripts_brings_no_torch() -> None:
    parts = {name.rpartition(".")[0] for name in imports("compilewatch.profiling")}
    assert len(parts) == 2
    for module in parts:
        assert {name.split(".")[0] for name in imports(module)}.isdisjoint(HEAVY), module


def test_the_checks_see_something() -> None:
    """Guards against a moved package, with which every other test here would pass."""
    assert len(WORKER) > 10
    assert len(PARENT) > 20
    assert "torch.nn" in set(imports("compilewatch.worker.subject"))
    assert "compilewatch.records" in set(imports("compilewatch.launchers.local.launcher"))


@pytest.mark.torch
@pytest.mark.parametrize(
    ("table", "name"), [(table, name) for table, entries in TABLES.items() for name in entries]
)
def test_every_entry_of_a_table_resolves_to_what_it_is_named_after(table: str, name: str) -> None:
    module, _, attribute = TABLES[table][name].partition(":")
    found = getattr(importlib.import_module(module), attribute)
    assert isinstance(found, type)
    assert found.name == name  # type: ignore[attr-defined]


@pytest.mark.process
def test_tables_are_read_without_loading_their_entries() -> None:
    entries = [row.partition(":")[0] for rows in TABLES.values() for row in rows.values()]
    packages = ", ".join(f"compilewatch.{name}" for name in ("contract.targets", *TABLES))
    packages = packages.replace("compilewatch.targets, ", "")
    code = f"import sys, {packages}; print([m for m in {entries!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_importing_does_nothing() -> None:
    """At the top of a module only definitions: no loop, no context, no bare call."""
    for module in modules():
        for node in tree_of(module).body:
            if isinstance(node, ast.Expr):
                assert isinstance(node.value, ast.Constant), f"{module}:{node.lineno}: a call"
            assert not isinstance(node, ast.For | ast.While | ast.With | ast.Delete), module


def test_no_pickle_is_ever_loaded() -> None:
    banned = ("pickle", "cPickle", "dill", "cloudpickle", "shelve", "joblib", "marshal")
    guilty = [
        (module, name)
        for module in modules()
        for name in imports(module)
        if name.split(".")[0] in banned or name in ("torch.load", "torch.save")
    ]
    guilty += [
        (module, "torch.load")
        for module in modules()
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.Attribute)
        and node.attr == "load"
        and isinstance(node.value, ast.Name)
        and node.value.id in ("torch", "numpy", "np")
    ]
    assert guilty == []


FORKS_OF_THEIR_OWN = {
    "compilewatch.worker.forked",
    "compilewatch.extras.fixes.worker.verifying",  # the text of a script of plain PyTorch
    "compilewatch.extras.executor.sandbox.init",  # bubblewrap ends it
}


def test_forks_end_with_their_process() -> None:
    """A fork does not inherit the death signal: only `forked.fork` sets one."""
    forking = {
        module
        for module in modules()
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.Attribute | ast.Call)
        and ast.unparse(node) in ("os.fork", "multiprocessing.get_context('fork')")
    }
    assert forking == FORKS_OF_THEIR_OWN


RUN_FILES = {"results.jsonl", "run.json", ".index"}


def test_only_the_store_touches_the_files_of_a_run() -> None:
    """By name, which is how a file is reached; prose about them stands in docstrings."""
    naming: dict[bool, set[str]] = {True: set(), False: set()}
    for module in modules():
        names = {n.value for n in ast.walk(tree_of(module)) if isinstance(n, ast.Constant)}
        if named := {str(name) for name in names} & RUN_FILES:
            in_store = module.startswith("compilewatch.store") or in_worker(module)
            naming[in_store] |= named if in_store else {module}
    assert naming == {True: RUN_FILES, False: set()}
