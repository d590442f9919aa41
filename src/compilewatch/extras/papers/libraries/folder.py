"""The library `folder`: the papers of a folder, in an index of SQLite's FTS5 in the cache.

The index can be deleted at any time: it is built again from the files.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import re
import sqlite3
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from compilewatch.errors import SourceError, UsageError
from compilewatch.extras.papers import PaperQuery
from compilewatch.extras.papers.records import Paper
from compilewatch.extras.papers.settings import PapersSettings
from compilewatch.extras.papers.text import UnreadableError, format_of, read_text

SUFFIXES = frozenset({".pdf", ".tex", ".html", ".htm", ".md", ".txt"})
INDEXED_TOKENS = 60_000
VERSION = 1
"""Raised when what is indexed changes; an index of another version is built again."""

_SCHEMA = """
CREATE TABLE paper(id TEXT PRIMARY KEY, path TEXT, size INTEGER, mtime_ns INTEGER, title TEXT,
  authors TEXT, date TEXT, license TEXT, abstract TEXT, ingested REAL);
CREATE VIRTUAL TABLE content USING fts5(id UNINDEXED, title, abstract, authors, body,
  tokenize = 'porter unicode61');
"""
_FIELDS = ("title", "abstract", "authors", "body")


class FolderLibrary:
    """The papers below a folder; the id of a paper is the name of its file without the suffix."""

    name = "folder"

    def __init__(self, settings: PapersSettings, *, cache: Path) -> None:
        self._folder = Path(settings.folder).absolute()
        digest = hashlib.sha256(str(self._folder).encode()).hexdigest()[:16]
        self._index = cache / "papers" / f"{digest}-{VERSION}.sqlite"

    def find(self, query: PaperQuery) -> tuple[Paper, ...]:
        if not self._folder.is_dir():
            raise SourceError(
                f"the folder of papers {self._folder} does not exist: create it, or name another "
                "with --folder"
            )
        with self._opened() as database:
            self._update(database)
            rows = list(self._rows(database, query))
        if query.random:
            random.shuffle(rows)
        return tuple(self._paper(row) for row in rows[: query.max_papers])

    def fetch(self, paper: Paper) -> bytes:
        try:
            return Path(paper.location).read_bytes()
        except OSError as error:
            raise SourceError(f"{paper.location} cannot be read: {error.strerror}") from None

    @contextlib.contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        try:
            self._index.parent.mkdir(parents=True, exist_ok=True)
            database = sqlite3.connect(self._index, timeout=30.0)
        except (OSError, sqlite3.Error) as error:
            raise SourceError(f"the index {self._index} cannot be opened: {error}") from None
        database.row_factory = sqlite3.Row
        try:
            with database:
                if not database.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
                    database.executescript(_SCHEMA)
                yield database
        except sqlite3.DatabaseError as error:
            raise SourceError(f"the index {self._index} is damaged ({error}): delete it") from None
        finally:
            database.close()

    def _update(self, database: sqlite3.Connection) -> None:
        """Index files that are new or have changed, and forget those that were deleted."""
        known = {row["id"]: row for row in database.execute("SELECT * FROM paper")}
        files = self._files()
        for gone in known.keys() - files.keys():
            database.execute("DELETE FROM paper WHERE id = ?", (gone,))
            database.execute("DELETE FROM content WHERE id = ?", (gone,))
        for name, path in files.items():
            stat = path.stat()
            row = known.get(name)
            if row and (row["path"], row["size"], row["mtime_ns"]) == (
                str(path),
                stat.st_size,
                stat.st_mtime_ns,
            ):
                continue
            about = describe(path)
            database.execute("DELETE FROM content WHERE id = ?", (name,))
            database.execute(
                "INSERT OR REPLACE INTO paper VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    *(name, str(path), stat.st_size, stat.st_mtime_ns, about["title"]),
                    *(about["authors"], about["date"], about["license"], about["abstract"]),
                    stat.st_mtime,
                ),
            )
            database.execute(
                "INSERT INTO content VALUES (?, ?, ?, ?, ?)",
                (name, about["title"], about["abstract"], about["authors"], about["body"]),
            )

    def _files(self) -> dict[str, Path]:
        files: dict[str, Path] = {}
        for path in sorted(self._folder.rglob("*")):
            hidden = any(part.startswith(".") for part in path.relative_to(self._folder).parts)
            if path.suffix.lower() not in SUFFIXES or hidden or not path.is_file():
                continue
            # The source of a paper is easier to read than its PDF.
            if path.stem in files and files[path.stem].suffix != ".pdf":
                continue
            files[path.stem] = path
        return files

    def _rows(self, database: sqlite3.Connection, query: PaperQuery) -> Iterator[sqlite3.Row]:
        if query.paper_id:
            yield from database.execute("SELECT * FROM paper WHERE id = ?", (query.paper_id,))
            return
        if query.recent_days is not None:
            since = time.time() - query.recent_days * 86_400
            yield from database.execute(
                "SELECT * FROM paper WHERE ingested >= ? ORDER BY ingested DESC, id", (since,)
            )
            return
        match = _match(query)
        if not match:
            yield from database.execute("SELECT * FROM paper ORDER BY ingested DESC, id")
            return
        yield from database.execute(
            "SELECT paper.* FROM content JOIN paper USING (id) WHERE content MATCH ? "
            "ORDER BY rank, id",
            (match,),
        )

    def _paper(self, row: sqlite3.Row) -> Paper:
        return Paper(
            id=row["id"],
            title=row["title"],
            library=self.name,
            location=row["path"],
            abstract=row["abstract"],
            authors=tuple(name for name in row["authors"].split("; ") if name),
            date=row["date"],
            ingested_at=datetime.fromtimestamp(row["ingested"], UTC).isoformat(),
            license=row["license"] or None,
        )


def _match(query: PaperQuery) -> str:
    """The FTS5 query. Empty: all papers. Raises UsageError for DSL that this does not know."""
    if query.dsl is None:
        return _words(query.text)
    if len(query.dsl) == 1:
        ((kind, body),) = query.dsl.items()
        if kind == "match_all":
            return ""
        if kind == "match" and isinstance(body, dict) and len(body) == 1:
            ((field, value),) = body.items()
            text = value.get("query", "") if isinstance(value, dict) else value
            if field in _FIELDS:
                return _in_field(field, str(text))
        if kind == "multi_match" and isinstance(body, dict):
            fields = [str(name).partition("^")[0] for name in body.get("fields", _FIELDS)]
            if set(fields) <= set(_FIELDS):
                text = str(body.get("query", ""))
                return " OR ".join(_in_field(name, text) for name in fields)
    raise UsageError(
        "a folder of papers only understands match_all, match and multi_match on title, abstract, "
        "authors and body: use words, or set OPENSEARCH_ENDPOINT"
    )


def _words(text: str) -> str:
    words = re.findall(r"\w+", text)
    if text.strip() and not words:
        raise UsageError(f"the query {text!r} contains no word")
    return " OR ".join(f'"{word}"' for word in words)


def _in_field(field: str, text: str) -> str:
    return f"{{{field}}} : ({_words(text)})"


def describe(path: Path) -> dict[str, str]:
    """Title, authors, date, license, abstract and body of a file, as far as they are in it.

    A file that cannot be read is listed with its name, so that reading it can report why.
    """
    about = dict.fromkeys(("authors", "date", "license", "abstract", "body"), "")
    about["title"] = path.stem.replace("-", " ").replace("_", " ")
    try:
        data = path.read_bytes()
        about["body"] = read_text(data, max_tokens=INDEXED_TOKENS).text
        kind = format_of(data)
    except (OSError, UnreadableError):
        return about
    source = about["body"] if kind == "pdf" else data.decode("utf-8", "ignore")
    for name, pattern in _PATTERNS.get(kind, _PATTERNS["text"]).items():
        if passage := re.search(pattern, source, re.DOTALL | re.IGNORECASE | re.MULTILINE):
            text = re.sub(r"<[^>]+>|\s+", " ", passage[1]).strip()
            about[name] = " ".join(text.split())[:2000]
    about["authors"] = re.sub(r"\s*(?:\\and|\band\b|,|;)\s*", "; ", about["authors"])
    return about


_PATTERNS: dict[str, dict[str, Any]] = {
    "latex": {
        "title": r"\\title\{((?:[^{}]|\{[^{}]*\})*)\}",
        "authors": r"\\author\{([^{}]*)\}",
        "date": r"\\date\{(\d{4}-\d{2}-\d{2})\}",
        "license": r"^%\s*license:\s*(.+)$",
        "abstract": r"\\begin\{abstract\}(.*?)\\end\{abstract\}",
    },
    "html": {
        "title": r"<title>(.*?)</title>",
        "authors": r"<meta name=\"author\" content=\"([^\"]*)\"",
        "date": r"<meta name=\"date\" content=\"(\d{4}-\d{2}-\d{2})\"",
        "license": r"<meta name=\"license\" content=\"([^\"]*)\"",
        "abstract": r"<section id=\"abstract\">(.*?)</section>",
    },
    "text": {
        "title": r"^#\s+([^\n]+)$",
        "authors": r"^authors?:\s*([^\n]+)$",
        "date": r"^date:\s*(\d{4}-\d{2}-\d{2})\s*$",
        "license": r"^license:\s*([^\n]+)$",
        "abstract": r"^##\s*abstract\s*$(.*?)^##",
    },
    "pdf": {"abstract": r"^abstract\b[.:\s]*(.{40,2000}?)\n\s*\n"},
}
"""Format -> the parts of a file that describe the paper."""
