"""Checks that reviewed data fits the pinned versions, and states them in `checked_with`.

    python -m scripts.check_inputs            # what does not fit; exit status 1 if something
    python -m scripts.check_inputs --write    # also state the pinned versions, if all fits

`make lock` writes them after the pinned versions have passed its sweep. What is compared by name:
the architectures of `data/popularity.csv`, and the classes and architectures of
`data/overrides/*.toml` whose version scope contains the pinned Transformers, except those of
other packages.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from packaging.specifiers import SpecifierSet

from compilewatch import files
from compilewatch.sources.popularity import read_popularity
from compilewatch.sources.transformers import ScannedLibrary, read_library
from compilewatch.worker.model.overrides import Overrides

ROOT = Path(__file__).parent.parent

_STATED = {
    ".csv": re.compile(r"^# checked with: ([^\r\n]*)", re.MULTILINE),
    ".toml": re.compile(r'^checked_with = "([^"\r\n]*)"', re.MULTILINE),
}


def pinned(root: Path) -> dict[str, str]:
    """The version of torch and of Transformers in `requirements/default.txt`."""
    text = (root / "requirements" / "default.txt").read_text()
    pins = re.findall(r"^(torch|transformers)==(\S+)", text, re.MULTILINE)
    return {str(name): str(version) for name, version in pins}


def reviewed(root: Path) -> list[Path]:
    data = root / "src" / "compilewatch" / "data"
    return [data / "popularity.csv", *sorted((data / "overrides").glob("*.toml"))]


def unknown_names(path: Path, library: ScannedLibrary) -> Iterator[str]:
    """Names in a reviewed file that the scanned Transformers does not have."""
    if path.suffix == ".csv":
        yield from sorted(read_popularity(path).keys() - library.model_types.keys())
        return
    classes = {each.name for each in library.classes}
    types = library.model_types.keys() | {each.model_type for each in library.classes}
    for override in files.read_toml(path, Overrides).override:
        if override.transformers is None or library.version in SpecifierSet(override.transformers):
            own = override.classes if override.module is None else ()
            yield from (name for name in own if name not in classes)
            yield from (name for name in override.model_types if name not in types)


def stated(path: Path) -> str | None:
    """The versions that a reviewed file says it was checked with."""
    names = _STATED[path.suffix].search(path.read_text())
    return names[1] if names else None


def findings(root: Path, library: ScannedLibrary) -> Iterator[str]:
    versions = pinned(root)
    if library.version != versions["transformers"]:
        yield f"transformers {library.version} is installed, {versions['transformers']} is pinned"
    for path in reviewed(root):
        for name in unknown_names(path, library):
            yield f"{path.relative_to(root)}: transformers {library.version} has no {name}"


def write(root: Path) -> None:
    """State the pinned versions in each reviewed file."""
    said = wording(pinned(root))
    for path in reviewed(root):
        pattern, text = _STATED[path.suffix], path.read_bytes().decode()  # line ends as they are
        start, end = _span(pattern, path, text)
        files.replace(path, (text[:start] + said + text[end:]).encode())


def wording(versions: dict[str, str]) -> str:
    return f"torch {versions['torch']}, transformers {versions['transformers']}"


def _span(pattern: re.Pattern[str], path: Path, text: str) -> tuple[int, int]:
    match_ = pattern.search(text)
    if match_ is None:
        raise SystemExit(f"{path}: add a line such as {pattern.pattern} first")
    return match_.span(1)


def main() -> int:
    wrong = list(findings(ROOT, read_library()))
    writes = "--write" in sys.argv[1:]
    if not writes:
        pins = wording(pinned(ROOT))
        wrong += [
            f"{path.relative_to(ROOT)}: checked with {stated(path)}, pinned are {pins}: review it, "
            "then run: python -m scripts.check_inputs --write"
            for path in reviewed(ROOT)
            if stated(path) != pins
        ]
    for line in wrong:
        print(f"check_inputs: {line}")
    if writes and not wrong:
        write(ROOT)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
