"""Which code is a repository's own, wherever it is installed, and what stands at a line of it."""

import ast
import builtins
import difflib
import importlib.metadata
import json
import keyword
import os
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from packaging.utils import canonicalize_name

from compilewatch.report.terminal import installed_file

INSTALLED = ("site-packages", "dist-packages")

_PROJECT_FILES = {"pyproject.toml", "setup.py", "setup.cfg"}

_MOST_FOLDERS = 20_000
"""A root without a project may be a home folder, which is not read to its end."""

_WORD = re.compile(
    r"""(?P<prefix>[rbfuRBFU]{0,2})(?P<quote>['"])(?P<string>(?:\\.|(?!(?P=quote)).)*)(?P=quote)"""
    r"|(?P<owner>\bself\.)?(?P<dot>\.)?(?P<word>[A-Za-z_]\w*|\d[\w.]*)"
)

_FIELD = re.compile(r"\{([^{}]*)\}")

_TEXT_CHARACTERS = 200


@dataclass(frozen=True)
class OwnLine:
    """A line of own code.

    `file` is relative to the root of the repository, or to the folder of packages if the repository
    has no such file. `stale` says that the file that ran has another text.
    """

    file: str
    line: int
    stale: bool = False


@dataclass(frozen=True, kw_only=True)
class OwnCode:
    """The own code of the repository at `root`: its files, and its distributions.

    A distribution is its own by the name in pyproject.toml, if it was installed from the clone, or
    if a package of it lies in the clone; `packages` names others.
    """

    root: Path
    packages: tuple[str, ...] = ()

    def line(self, file: str, line: int, files: Mapping[str, str]) -> OwnLine | None:
        """Return the line of the repository that a line of a file is; None for other code.

        `file` is relative to the parent of its package; `files` says where such files lie.
        """
        named = file.partition("/")[0].removesuffix(".py") in self.packages
        if file not in files:
            return OwnLine(file, line) if named else None
        path = Path(os.path.realpath(files[file]))
        top = clone_of(self.root)
        if path.is_relative_to(top) and not set(path.relative_to(top).parts) & set(INSTALLED):
            return OwnLine(self._relative(path), line)
        distributed = str(path) in _distributed(self.root.resolve(), top)
        counterpart = _counterpart(file, path, top, distributed=distributed)
        if counterpart is None:
            return OwnLine(file, line) if named or distributed else None
        ran, own = _lines(path), _lines(counterpart)
        return OwnLine(self._relative(counterpart), _mapped_line(ran, own, line), ran != own)

    def _relative(self, path: Path) -> str:
        return Path(os.path.relpath(path, self.root.resolve())).as_posix()


def clone_of(root: Path) -> Path:
    """Return the top of the clone that a folder is in; the folder itself outside of one."""
    root = root.resolve()
    return next((f for f in (root, *root.parents) if (f / ".git").exists()), root)


@cache
def _distributed(root: Path, top: Path) -> frozenset[str]:
    """The installed files of the distributions that are the repository's own."""
    names = {canonicalize_name(name) for folder in {root, top} if (name := _project_name(folder))}
    paths: set[str] = set()
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"] or ""
        if canonicalize_name(name) in names or _installed_from(distribution, top):
            folder = Path(os.path.realpath(str(distribution.locate_file(""))))
            paths |= {str(folder / str(file)) for file in distribution.files or ()}
    return frozenset(paths)


def _project_name(folder: Path) -> str | None:
    try:
        content = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    poetry = content.get("tool", {}).get("poetry", {})
    name = content.get("project", {}).get("name") or poetry.get("name")
    return name if isinstance(name, str) else None


def _installed_from(distribution: importlib.metadata.Distribution, top: Path) -> bool:
    """Whether a distribution was installed from a folder or a file of the clone (PEP 610)."""
    try:
        address = urlsplit(json.loads(distribution.read_text("direct_url.json") or "{}")["url"])
    except (KeyError, TypeError, ValueError):
        return False
    path = Path(os.path.realpath(url2pathname(address.path)))
    return address.scheme == "file" and path.is_relative_to(top)


def _counterpart(file: str, installed: Path, top: Path, *, distributed: bool) -> Path | None:
    """The file of the repository that was installed.

    It has the same path in its package, and lies where packages of a project lie or has the same
    text. That of an own distribution may have been moved when it was built.
    """
    projects, by_name = _python_files(top)
    same_name = by_name.get(installed.name, ())
    same_path = [path for path in same_name if path.as_posix().endswith(f"/{file}")]
    for path in same_path:
        parent = path.parents[file.count("/")]
        if parent in projects and "/" in file:
            return path
    alike = [path for path in (*same_path, *(same_name if distributed else ())) if path.is_file()]
    return next((path for path in alike if _lines(path) == _lines(installed)), None)


@cache
def _python_files(top: Path) -> tuple[frozenset[Path], Mapping[str, Sequence[Path]]]:
    """The folders in which projects of a clone have packages, and its Python files by name."""
    projects: set[Path] = set()
    by_name: dict[str, list[Path]] = {}
    for number, (folder, folders, files) in enumerate(os.walk(top)):
        inside = Path(folder)
        foreign = inside != top and ".git" in (*folders, *files)
        if foreign or "pyvenv.cfg" in files or number > _MOST_FOLDERS:
            folders.clear()
            continue
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f not in INSTALLED)
        if inside == top or _PROJECT_FILES & set(files):
            projects |= {inside, *(inside / name for name in ("src", "python", "lib"))}
            folders[:] = [f for f in folders if f not in ("build", "dist")]
        for name in files:
            if name.endswith(".py"):
                by_name.setdefault(name, []).append(inside / name)
    return frozenset(projects), by_name


def _lines(path: Path) -> list[str]:
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    return []


def _mapped_line(installed: list[str], own: list[str], line: int) -> int:
    """The number that a line of an installed file has in the repository's, its own if it is new."""
    matcher = difflib.SequenceMatcher(None, installed, own, False)
    for start, other, size in matcher.get_matching_blocks() if installed != own else ():
        if start < line <= start + size:
            return line - start + other
    return line


def source_folders(root: Path, further: Iterable[str] = ()) -> tuple[Path, ...]:
    """Return the folders below which a repository's packages lie, `further` ones first."""
    return tuple(dict.fromkeys((*map(Path, further), root / "src", root)))


def located(files: Iterable[str], folders: Sequence[Path]) -> dict[str, str]:
    """Return where files of breaks lie that another process has named, without importing any.

    Each is relative to the parent of its package: one of `folders`, or where it is installed.
    """
    places: dict[str, str] = {}
    for file in files:
        path = next((p for p in (folder / file for folder in folders) if p.is_file()), None)
        path = path or installed_file(file)
        if path is not None:
            places[file] = str(path)
    return places


def statement_at(
    path: str, line: int, function: str, text: str = ""
) -> tuple[str, str, int, ast.AST | None]:
    """Return what stands at a line of a file: a statement without the block below it.

    That is the qualified name of its function (`Model.forward`), its text as `ast.unparse` formats
    it, its first line, and the node of the function; `function` and `text` where it cannot be read.
    """
    tree = _tree(path)
    nodes = list(_spanning(tree, line))
    around = [n for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    statements = [node for node in nodes if isinstance(node, ast.stmt)]
    name = _qualified(tree).get(around[-1], function) if tree and around else function
    if not statements:
        return name, text[:_TEXT_CHARACTERS], line, None
    innermost = statements[-1]
    blocks = [s for s in statements if isinstance(s, ast.If | ast.For | ast.While | ast.With)]
    innermost = next((block for block in blocks if block.lineno == innermost.lineno), innermost)
    return name, _header(innermost), innermost.lineno, around[-1] if around else tree


def statements_of(path: Path, function: str) -> list[str] | None:
    """The texts of all statements of a function; None if the file has no such function."""
    tree = _tree(str(path))
    nodes = [node for node, name in _qualified(tree).items() if name == function] if tree else []
    if not nodes:
        return None
    return [_header(node) for node in ast.walk(nodes[-1]) if isinstance(node, ast.stmt)]


def _tree(path: str) -> ast.Module | None:
    try:
        return _parsed(path, Path(path).stat().st_mtime_ns)
    except OSError:
        return None


@cache
def _parsed(path: str, _changed: int) -> ast.Module | None:
    try:
        return ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None


def _spanning(tree: ast.AST | None, line: int) -> Iterator[ast.AST]:
    """The nodes of statements around a line, outermost first."""
    for node in ast.iter_child_nodes(tree) if tree is not None else ():
        decorators = [decorator.lineno for decorator in getattr(node, "decorator_list", ())]
        first = min([getattr(node, "lineno", 0), *decorators])
        if first <= line <= (getattr(node, "end_lineno", None) or line):
            yield node
            yield from _spanning(node, line)


@cache
def _qualified(tree: ast.AST, prefix: str = "") -> dict[ast.AST, str]:
    names: dict[ast.AST, str] = {}
    for node in ast.iter_child_nodes(tree):
        inner = prefix
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{prefix}{node.name}."
            if not isinstance(node, ast.ClassDef):
                names[node] = f"{prefix}{node.name}"
        names |= _qualified(node, inner)
    return names


def _header(node: ast.stmt) -> str:
    return ast.unparse(node).partition("\n")[0][:_TEXT_CHARACTERS]


def same_shape(text: str, other: str) -> bool:
    """Whether two statements differ in names of variables and of `self`'s attributes only."""
    fixed, names = _words(text)
    other_fixed, other_names = _words(other)
    return Counter(fixed) == Counter(other_fixed) and len({*names}) == len({*other_names})


def same_statement(known: str, text: str, function: ast.AST | None) -> bool:
    """Whether a statement is one that was known by another text in the same function.

    Names may be others if the function no longer has the known ones. Beyond names, both have the
    same words, or those of a variable that was extracted or inlined, of a constant that was named,
    or of an `if` that became a conditional expression.
    """
    if function is None:
        return False
    defined = _definitions(function)
    fixed, names = map(set, _words(known))
    new_fixed, new_names = map(set, _words(text))
    removed = names - set(_identifiers(function))
    introduced = (new_names - names) & defined.keys()
    kept = names - removed <= new_names
    if (known[:3] == "if " and " if " in text) or (text[:3] == "if " and " if " in known):
        return (kept and fixed <= new_fixed) or (new_names <= names and new_fixed <= fixed)
    if new_fixed < fixed:
        read = [_words(defined[name]) for name in sorted(new_names & defined.keys())]
        if fixed <= new_fixed.union(*(words for words, _ in read)):
            return names - removed <= new_names.union(*(words for _, words in read))
        constants = not any(word.isidentifier() for word in fixed - new_fixed)
        alike = bool(new_fixed or names & new_names)
        return kept and constants and alike and bool(removed or not introduced)
    assigned = set(_words(known.rpartition(" = ")[0])[1])
    return kept and (fixed == new_fixed or (fixed < new_fixed and bool(removed - assigned)))


def _words(text: str) -> tuple[list[str], list[str]]:
    """The words of a statement: those that a change of names leaves, and the names."""
    fixed: list[str] = []
    names: list[str] = []
    for match in _WORD.finditer(text):
        word, string = match["word"], match["string"]
        if string is not None:
            fields = _FIELD.findall(string) if "f" in match["prefix"].lower() else []
            fixed.append(repr(_FIELD.sub("{}", string) if fields else string))
            for field in fields:
                for words, more in zip((fixed, names), _words(field), strict=True):
                    words += more
        elif not keyword.iskeyword(word) and (word != "self" or match["dot"]):
            renamed = match["owner"] or not (match["dot"] or word[0].isdigit())
            (names if renamed and not hasattr(builtins, word) else fixed).append(word)
    return fixed, names


def _identifiers(function: ast.AST) -> Iterator[str]:
    """The names of variables, arguments and attributes of `self` that a function uses."""
    for node in ast.walk(function):
        match node:
            case ast.Name(id=word) | ast.arg(arg=word):
                yield word
            case ast.Attribute(value=ast.Name(id="self"), attr=word):
                yield word


def _definitions(function: ast.AST) -> dict[str, str]:
    """The arguments of a function, and its variables with the texts of their values."""
    values: dict[str, str] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.arg):
            values.setdefault(node.arg, "")
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            values.setdefault(node.id, "")
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and node.value:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    values[target.id] = ast.unparse(node.value)
    return values
