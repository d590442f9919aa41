"""What a Python file defines that makes a model, read from its syntax without importing it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from compilewatch.errors import ConfigError

_LIKELY = re.compile(r"(build|make|create|get|load)(_\w+)?|\w*_?(model|net|network)")
_NO_FACTORY = re.compile(r"_.*|main|test_.*|(example_)?inputs")
_MODULE_BASES = ("Module", "PreTrainedModel", "LightningModule")


def possible_factories(file: Path) -> list[str]:
    """The functions or classes of a file that make a model without arguments, likely ones only.

    They are functions with a typical name of a factory in a file that defines modules, otherwise
    the modules that no other class of the file uses. Raises ConfigError for a file that is not
    Python.
    """
    functions, _, outer = _factories(file)
    body = _parsed(file).body
    classes = {node.name: node for node in body if isinstance(node, ast.ClassDef)}
    if any(_is_module(node, classes) for node in classes.values()):
        named = [n for n in functions if _LIKELY.fullmatch(n) and not n.startswith(("get", "load"))]
        return named or outer
    return []


def _factories(file: Path) -> tuple[list[str], list[str], list[str]]:
    """The functions that return something without arguments, the modules, and the outer modules."""
    body = _parsed(file).body
    functions = [
        node.name
        for node in body
        if isinstance(node, ast.FunctionDef)
        and not _NO_FACTORY.fullmatch(node.name)
        and not _needed(node)
        and any(isinstance(inner, ast.Return) and inner.value for inner in ast.walk(node))
    ]
    classes = {node.name: node for node in body if isinstance(node, ast.ClassDef)}
    modules = [name for name, node in classes.items() if _is_module(node, classes)]
    callable_modules = [name for name in modules if not _needed_by_class(classes[name])]
    used = {
        inner.id
        for name in modules
        for inner in ast.walk(classes[name])
        if isinstance(inner, ast.Name) and inner.id != name
    }
    return functions, callable_modules, [name for name in callable_modules if name not in used]


def only_factory(file: Path, shown: str) -> str:
    """The only function or class of a file that makes a model.

    Functions without arguments take precedence over classes. Of several functions, the one with a
    typical name of a factory is chosen; of several classes, the one that no other class of the file
    uses. Raises ConfigError with the candidates if there is not exactly one.
    """
    functions, modules, outer = _factories(file)
    likely = [name for name in functions if _LIKELY.fullmatch(name)]
    for choice in (functions, likely, *([] if functions else [modules, outer])):
        if len(choice) == 1:
            return choice[0]
    candidates = ", ".join(f"{shown}:{name}" for name in (*functions, *modules))
    if candidates:
        raise ConfigError(f"{shown} has several possible factories: name one of {candidates}")
    raise ConfigError(
        f"{shown} has no function without arguments that returns a module: write one and name it "
        f"as {shown}:NAME"
    )


def check_factory(file: Path, attribute: str, module: str) -> None:
    """Raises ConfigError if a file certainly lacks this callable, or if it needs arguments."""
    nodes = list(_top_level(_parsed(file).body))
    known = [name for node in nodes for name in _names(node)]
    if attribute not in known and not {"*", "__getattr__"} & set(known):
        tops = [n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)]
        there = f"; it defines {', '.join(tops[:8])}" if tops else ""
        raise ConfigError(f"{file} has no {attribute}: give MODULE:FACTORY{there}")
    for node in nodes:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name != attribute:
            continue
        needed = _needed(node) if isinstance(node, ast.FunctionDef) else _needed_by_class(node)
        if needed:
            raise ConfigError(
                f"{module}:{attribute} needs {', '.join(needed)}: name a function without "
                "arguments as MODULE:FACTORY"
            )


def _parsed(file: Path) -> ast.Module:
    try:
        return ast.parse(file.read_bytes(), str(file))
    except SyntaxError as error:
        line = f": {error.text.strip()}" if error.text else ""
        raise ConfigError(f"{file}:{error.lineno}: SyntaxError: {error.msg}{line}") from None
    except (OSError, ValueError, MemoryError, RecursionError) as error:
        raise ConfigError(f"{file} cannot be read: {str(error) or type(error).__name__}") from None


def _top_level(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run at import, including those in `if` and `try`."""
    for node in body:
        yield node
        for field in ("body", "orelse", "finalbody", "handlers"):
            if isinstance(node, ast.If | ast.Try | ast.With | ast.ExceptHandler):
                yield from _top_level(getattr(node, field, []))


def _names(node: ast.stmt) -> Iterator[str]:
    """The names that a statement defines; `*` for a star import."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from ((alias.asname or alias.name).partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from (n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name))
    elif isinstance(node, ast.Expr | ast.For):
        # `globals().update(…)` and the like may define anything.
        yield from ("*" for n in ast.walk(node) if getattr(n, "id", "") in ("globals", "setattr"))


def _needed(function: ast.FunctionDef, skipped: int = 0) -> list[str]:
    """The arguments that a call must give, without the first `skipped`."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    required = positional[skipped : len(positional) - len(arguments.defaults)]
    named = [
        a
        for a, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if not default
    ]
    return [argument.arg for argument in (*required, *named)]


def _needed_by_class(node: ast.ClassDef) -> list[str]:
    for inner in node.body:
        if isinstance(inner, ast.FunctionDef) and inner.name == "__init__":
            return _needed(inner, skipped=1)
    return []


def _is_module(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> bool:
    """Whether a class seems to be an `nn.Module`, directly or through a base class in the file."""
    for base in node.bases:
        name = base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "")
        if name in _MODULE_BASES:
            return True
        if name in classes and name != node.name and _is_module(classes[name], classes):
            return True
    return False
