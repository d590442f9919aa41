"""Checks the links and images of all Markdown files that git knows: files and headings must exist.

Addresses on the network are not requested. Exit status 1 if a link leads nowhere.
"""

import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parent.parent

_PUNCTUATION = re.compile(r"[^\w\- ]")


def documents(root: Path = ROOT) -> list[Path]:
    """The Markdown files of the checkout, new ones included, ignored ones not."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    names = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    return [path for name in names.splitlines() if (path := root / name).is_file()]


def broken(path: Path) -> Iterator[str]:
    """The links of a file that lead to no file or heading, as they are written."""
    for link in _links(path):
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = path.parent / unquote(parts.path) if parts.path else path
        anchored = bool(parts.fragment) and target.suffix == ".md"
        if not target.exists() or (anchored and parts.fragment not in anchors(target)):
            yield link


@cache
def anchors(path: Path) -> frozenset[str]:
    """The headings of a file as GitHub spells them in addresses."""
    names: dict[str, int] = {}
    tokens = _tokens(path)
    for opening, inline in itertools.pairwise(tokens):
        if opening.type == "heading_open":
            text = "".join(
                child.content for child in inline.children or () if child.type != "image"
            )
            slug = _PUNCTUATION.sub("", text.strip().lower()).replace(" ", "-")
            names[slug] = names.get(slug, -1) + 1
    return frozenset(f"{slug}-{n}" if n else slug for slug in names for n in range(names[slug] + 1))


@cache
def _tokens(path: Path) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(path.read_text(encoding="utf-8"))


def _links(path: Path) -> Iterator[str]:
    for token in _tokens(path):
        for child in token.children or ():
            target = child.attrs.get("href" if child.type == "link_open" else "src")
            if isinstance(target, str):
                yield target


def main() -> int:
    problems = [(path, link) for path in documents() for link in broken(path)]
    for path, link in problems:
        print(f"{path.relative_to(ROOT)}: {link} leads to no file or heading")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
