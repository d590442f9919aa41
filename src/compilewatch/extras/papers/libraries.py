"""Where papers come from: a folder, or an OpenSearch index with files on S3.

Libraries raise SourceError or UsageError, each one line.
"""

import contextlib
import io
import logging
import re
import sqlite3
import time
import unicodedata
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from random import shuffle
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from compilewatch.config import PapersSettings
from compilewatch.errors import OsErrorsAs, SourceError, UsageError
from compilewatch.extras.papers.records import Paper
from compilewatch.records import Record

CHARACTERS_PER_TOKEN = 3.0
"""Fewer than the four of English text, so that the estimate is rather too high."""

MAX_BYTES = 64 * 2**20
"""A larger file is rejected before it is parsed."""

_BINARY = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffd\ufffe\uffff]|%PDF-\d?\.?\d?")
_BLOCKS = frozenset(
    "p div section article h1 h2 h3 h4 h5 h6 li tr br pre table ul ol".split()  # noqa: SIM905
)
_HIDDEN = frozenset(["script", "style", "noscript", "svg", "head"])


class PaperText(NamedTuple):
    """The text of a paper, as it goes into a prompt, without what did not fit into the limit."""

    text: str
    format: str
    left_out_characters: int


def read_text(data: bytes, *, max_tokens: int) -> PaperText:
    """Return the text of a paper's file. Raises SourceError for one without text."""
    if len(data) > MAX_BYTES:
        raise SourceError(f"the file has {len(data):,} bytes, and {MAX_BYTES:,} are the limit")
    limit = int(max_tokens * CHARACTERS_PER_TOKEN)
    kind = format_of(data)
    # A PDF is parsed page by page, so pages behind the limit need not be read.
    text = clean(_pdf(data, limit * 2) if kind == "pdf" else _decoded(data, kind))
    if len(text) < 200:
        raise SourceError(
            f"the {kind} file has {len(text)} characters of text: it is empty, or only has images"
        )
    return PaperText(text[:limit], kind, max(0, len(text) - limit))


def estimate_tokens(text: str) -> int:
    """An estimate that is rather too high; bytes, because a token is rarely shorter than two."""
    return -(-len(text.encode()) // int(CHARACTERS_PER_TOKEN))


def clean(text: str) -> str:
    """Text without binary data, trailing spaces and runs of empty lines."""
    plain = re.sub(r"[ \t]+\n", "\n", without_binary(text))
    return re.sub(r"\n{3,}", "\n\n", plain).strip()


def without_binary(text: str) -> str:
    """Text without control characters, U+FFFD and signatures of files, with normal line ends."""
    plain = unicodedata.normalize("NFC", text.replace("\r\n", "\n").replace("\r", "\n"))
    plain = plain.encode("utf-8", "ignore").decode()  # lone surrogates
    while _BINARY.search(plain):  # what remains may form a new signature
        plain = _BINARY.sub("", plain)
    return plain


def format_of(data: bytes) -> str:
    """`pdf`, `html`, `latex` or `text`, by content. Raises SourceError for binary data."""
    head = data[:4096]
    # Readers accept a header within the first 1,024 bytes; a text with one has no end mark.
    if head.lstrip().startswith(b"%PDF-") or (b"%PDF-" in head[:1024] and b"%%EOF" in data[-2048:]):
        return "pdf"
    if b"\x00" in data[:65536]:
        raise SourceError("the file is binary, and not a PDF: give PDF, LaTeX, HTML or text")
    lower = head.lower()
    if b"<html" in lower or b"<!doctype html" in lower:
        return "html"
    if b"\\documentclass" in head or b"\\begin{" in head:
        return "latex"
    return "text"


def _decoded(data: bytes, kind: str) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = data.decode("cp1252", "ignore")
    if kind == "html":
        page = _PageText()
        page.feed(text)
        page.close()
        return page.text.getvalue()
    return latex_text(text) if kind == "latex" else text


def _pdf(data: bytes, limit: int) -> str:
    import pypdf  # a tenth of a second

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # its warnings are for its developers
    text = ""
    try:
        for page in pypdf.PdfReader(io.BytesIO(data)).pages:
            text += page.extract_text() + "\n\n"
            if len(text) > limit:
                break
    except Exception as error:  # noqa: BLE001  (pypdf raises anything on damaged files)
        if not text:
            reason = type(error).__name__
            raise SourceError(f"the PDF is damaged or encrypted ({reason})") from None
    return text


def latex_text(source: str) -> str:
    """LaTeX without comments and preamble commands; formulas stay as they are."""
    text = re.sub(r"(?<!\\)%.*", "", source)
    title = re.search(r"\\title\{((?:[^{}]|\{[^{}]*\})*)\}", text)
    body = text.partition("\\begin{document}")[2].partition("\\end{document}")[0] or text
    body = re.sub(r"\\(?:maketitle|label\{[^}]*\}|bibliographystyle\{[^}]*\})", "", body)
    return f"{title[1]}\n\n{body}" if title else body


class _PageText(HTMLParser):
    """Collects the visible text of a page, one line for each block."""

    def __init__(self) -> None:
        super().__init__()
        self.text = io.StringIO()
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        del attrs
        self._hidden += tag in _HIDDEN
        self.text.write("\n" * (tag in _BLOCKS))

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in _HIDDEN and self._hidden > 0
        self.text.write("\n" * (tag in _BLOCKS))

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.text.write(data)


class PaperQuery(Record, frozen=True, kw_only=True):
    """Which papers to list: those that the one field that is set selects; none: all papers.

    `words` are searched for; `minutes`: ingested in the last so many; `clause` is one of
    OpenSearch's query language.
    """

    words: str = ""
    paper: str = ""
    minutes: int | None = None
    clause: dict[str, Any] | None = None


SUFFIXES = frozenset({".pdf", ".tex", ".html", ".htm", ".md", ".txt"})

SEARCHED_TOKENS = 4_000
"""Of each file, so that a search reads the first pages of a PDF and not all of it."""


class FolderLibrary:
    """The papers below a folder; the id of a paper is the name of its file without the suffix."""

    name = "folder"

    def __init__(self, settings: PapersSettings) -> None:
        self._folder = Path(settings.folder).absolute()

    def find(self, query: PaperQuery, most: int, *, random: bool = False) -> tuple[Paper, ...]:
        """Return at most `most` papers, the best or newest first, or drawn at random."""
        if not self._folder.is_dir():
            raise SourceError(
                f"the folder of papers {self._folder} does not exist: create it, or name another "
                "with --folder"
            )
        if query.clause is not None:
            raise UsageError(
                "a folder of papers is searched by words: give words, or set OPENSEARCH_ENDPOINT"
            )
        files = self._files()
        if query.paper:
            files = [path for path in files if path.stem == query.paper]
        if query.minutes is not None:
            since = time.time() - query.minutes * 60
            files = [path for path in files if path.stat().st_mtime >= since]
        if query.words:
            files = _ranked(files, query.words)
        if random:
            shuffle(files)
        return tuple(describe(path)[0] for path in files[:most])

    def fetch(self, paper: Paper) -> bytes:
        """Return the original file of a paper: PDF, LaTeX, HTML or text."""
        with OsErrorsAs(SourceError, f"{paper.location} cannot be read"):
            return Path(paper.location).read_bytes()

    def _files(self) -> list[Path]:
        """The files of all papers, the newest first."""
        files: dict[str, Path] = {}
        for path in sorted(self._folder.rglob("*")):
            hidden = any(part.startswith(".") for part in path.relative_to(self._folder).parts)
            if path.suffix.lower() not in SUFFIXES or hidden or not path.is_file():
                continue
            # The source of a paper is easier to read than its PDF.
            if path.stem in files and files[path.stem].suffix != ".pdf":
                continue
            files[path.stem] = path
        return sorted(files.values(), key=lambda path: (-path.stat().st_mtime, path.stem))


def _ranked(files: Sequence[Path], words: str) -> list[Path]:
    """The files with at least one of the words, the best first. Raises UsageError."""
    terms = re.findall(r"\w+", words)
    if not terms:
        raise UsageError(f"the query {words!r} contains no word")
    with contextlib.closing(sqlite3.connect(":memory:")) as index:
        columns = "title, authors, body"
        tokens = "tokenize = 'porter unicode61'"
        index.execute(f"CREATE VIRTUAL TABLE paper USING fts5({columns}, {tokens})")
        for number, path in enumerate(files):
            paper, body = describe(path)
            row = (number, paper.title, " ".join(paper.authors), body)
            index.execute(f"INSERT INTO paper (rowid, {columns}) VALUES (?, ?, ?, ?)", row)
        any_of = " OR ".join(f'"{term}"' for term in terms)
        ordered = "SELECT rowid FROM paper WHERE paper MATCH ? ORDER BY rank, rowid"
        rows = index.execute(ordered, (any_of,))
        return [files[number] for (number,) in rows]


def describe(path: Path) -> tuple[Paper, str]:
    """What a file says of its paper, and the beginning of its text.

    A file that cannot be read is listed with its name, so that reading it can report why.
    """
    title = path.stem.replace("-", " ").replace("_", " ")
    about = {"title": title, "authors": "", "date": ""}
    body = ""
    with contextlib.suppress(OSError, SourceError):
        data = path.read_bytes()
        body, kind, _ = read_text(data, max_tokens=SEARCHED_TOKENS)
        source = data.decode("utf-8", "ignore")
        for name, pattern in _PATTERNS.get(kind, {}).items():
            if passage := re.search(pattern, source, re.DOTALL | re.IGNORECASE | re.MULTILINE):
                about[name] = " ".join(re.sub(r"<[^>]+>", " ", passage[1]).split())[:2000]
    authors = re.split(r"\s*(?:\\and|\band\b|,|;)\s*", about["authors"])
    paper = Paper(
        id=path.stem,
        title=about["title"],
        library=FolderLibrary.name,
        location=str(path),
        authors=tuple(filter(None, authors)),
        date=about["date"],
    )
    return paper, body


_PATTERNS: dict[str, dict[str, Any]] = {
    "latex": {
        "title": r"\\title\{((?:[^{}]|\{[^{}]*\})*)\}",
        "authors": r"\\author\{([^{}]*)\}",
        "date": r"\\date\{(\d{4}-\d{2}-\d{2})\}",
    },
    "html": {
        "title": r"<title>(.*?)</title>",
        "authors": r"<meta name=\"author\" content=\"([^\"]*)\"",
        "date": r"<meta name=\"date\" content=\"(\d{4}-\d{2}-\d{2})\"",
    },
    "text": {
        "title": r"^#\s+([^\n]+)$",
        "authors": r"^authors?:\s*([^\n]+)$",
        "date": r"^date:\s*(\d{4}-\d{2}-\d{2})\s*$",
    },
}
"""Format -> the parts of a file that describe the paper; of a PDF, none is known."""


TIMEOUT_SECONDS = 60.0
FIELDS = ("title", "authors", "date", "s3_bucket", "s3_key")


class OpenSearchLibrary:
    """Searches by id, by time of ingestion, by words or by a query in OpenSearch's language."""

    name = "opensearch"

    def __init__(self, settings: PapersSettings) -> None:
        self._settings = settings
        endpoint = settings.opensearch_endpoint
        if not endpoint:
            raise UsageError("no OpenSearch endpoint is set: set OPENSEARCH_ENDPOINT")
        # The founding system names only the host.
        self._url = endpoint if "://" in endpoint else f"https://{endpoint}"
        if not self._url.startswith(("http://", "https://")):
            raise UsageError("OPENSEARCH_ENDPOINT is not an https:// address")

    def find(self, query: PaperQuery, most: int, *, random: bool = False) -> tuple[Paper, ...]:
        """See `FolderLibrary.find`."""
        clause: dict[str, Any] = query.clause or {"match_all": {}}
        if query.paper:
            clause = {"ids": {"values": [query.paper]}}
        elif query.minutes is not None:
            clause = {"range": {"ingested_at": {"gte": f"now-{query.minutes}m"}}}
        elif query.words:
            fields = ["title", "abstract", "authors"]
            clause = {"multi_match": {"query": query.words, "fields": fields}}
        body: dict[str, Any] = {"query": clause, "size": most, "_source": list(FIELDS)}
        if random:
            body["query"] = {"function_score": {"query": clause, "random_score": {}}}
        elif "range" in clause:
            body["sort"] = [{"ingested_at": {"order": "desc"}}]
        return tuple(self._paper(hit) for hit in self._search(body))

    def fetch(self, paper: Paper) -> bytes:
        """See `FolderLibrary.fetch`."""
        from botocore import exceptions

        from compilewatch import aws

        bucket, _, key = paper.location.removeprefix("s3://").partition("/")
        if not paper.location.startswith("s3://") or not key:
            raise SourceError(f"paper {paper.id} has no file: its s3_bucket or s3_key is empty")
        settings = self._settings
        try:
            client = aws.client(
                "s3",
                region=settings.region,
                profile=settings.profile,
                endpoint_url=settings.s3_endpoint_url,
                attempts=3,
            )
            response = client.get_object(Bucket=bucket, Key=key)
            data: bytes = response["Body"].read(MAX_BYTES + 1)
        except (exceptions.BotoCoreError, exceptions.ClientError) as error:
            reason = aws.explain(error, settings.region)
            raise SourceError(f"{paper.location} cannot be read: {reason}") from None
        if len(data) > MAX_BYTES:
            raise SourceError(f"{paper.location} has more than {MAX_BYTES:,} bytes")
        return data

    def _search(self, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        from opensearchpy import exceptions

        index = self._settings.opensearch_index
        where = f"OpenSearch at {urlsplit(self._url).hostname}"
        try:
            with contextlib.closing(self._client()) as client:
                response = client.search(body=body, index=index)
        except exceptions.NotFoundError:
            raise UsageError(f"{where} has no index {index}: set OPENSEARCH_INDEX") from None
        except (exceptions.AuthenticationException, exceptions.AuthorizationException) as error:
            raise SourceError(
                f"{where} rejects these credentials ({error.status_code}): check AWS_PROFILE and "
                "the access policy of the domain"
            ) from None
        except (exceptions.OpenSearchException, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            if isinstance(error, exceptions.RequestError):
                raise UsageError(f"{where} rejects the query: {reason}") from None
            problem = f"is not usable: {reason}"
            if isinstance(error, exceptions.ConnectionError):
                problem = f"does not respond ({reason})"
            elif "<html" in problem.lower() or "<!doctype" in problem.lower():
                problem = "is not usable: it responds with a web page: correct OPENSEARCH_ENDPOINT"
            raise SourceError(f"{where} {problem}") from None
        hits = response.get("hits", {}).get("hits") if isinstance(response, dict) else None
        if not isinstance(hits, list):
            raise SourceError(f"{where} responds without hits: is it another service?")
        return hits

    def _client(self) -> Any:
        import boto3
        from opensearchpy import OpenSearch, Urllib3AWSV4SignerAuth, Urllib3HttpConnection

        settings = self._settings
        session = boto3.Session(
            profile_name=settings.profile or None, region_name=settings.region or None
        )
        credentials = session.get_credentials()
        if credentials is None:
            raise UsageError(
                "no AWS credentials found for OpenSearch: set AWS_PROFILE, or AWS_ACCESS_KEY_ID "
                "and AWS_SECRET_ACCESS_KEY"
            )
        region = settings.region or session.region_name
        if not region:
            raise UsageError("OpenSearch needs a region: set AWS_REGION")
        return OpenSearch(
            hosts=[self._url],
            http_auth=Urllib3AWSV4SignerAuth(credentials, region, "es"),
            connection_class=Urllib3HttpConnection,
            timeout=TIMEOUT_SECONDS,
            max_retries=2,
            retry_on_timeout=True,
        )

    def _paper(self, hit: Mapping[str, Any]) -> Paper:
        source = hit.get("_source") or {}
        title = source.get("title")
        if not isinstance(title, str) or not title:
            raise UsageError(
                f"the index {self._settings.opensearch_index} has documents without the field "
                f"`title` (such as {hit.get('_id')}): its fields must be {', '.join(FIELDS)}"
            )
        bucket, key = source.get("s3_bucket") or "", source.get("s3_key") or ""
        authors = source.get("authors") or ()
        return Paper(
            id=str(hit.get("_id", "")),
            title=title,
            library=self.name,
            location=f"s3://{bucket}/{key}" if bucket and key else "",
            authors=(authors,) if isinstance(authors, str) else tuple(map(str, authors)),
            date=str(source.get("date") or ""),
        )


PaperLibrary = FolderLibrary | OpenSearchLibrary


def open_library(settings: PapersSettings) -> PaperLibrary:
    """The library that the settings name; `auto` is OpenSearch if its endpoint is set."""
    endpoint = settings.library == "auto" and settings.opensearch_endpoint
    opensearch = endpoint or settings.library == "opensearch"
    return OpenSearchLibrary(settings) if opensearch else FolderLibrary(settings)
