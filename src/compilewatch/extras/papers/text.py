"""The text of a paper, from PDF, LaTeX, HTML or plain text, within a limit of tokens.

What is returned never contains a control character, U+FFFD or the signature of a PDF file, so that
no binary data can reach a prompt.
"""

from __future__ import annotations

import hashlib
import io
import logging
import re
import unicodedata
from html.parser import HTMLParser

from compilewatch.errors import SourceError
from compilewatch.extras.papers.records import PaperText

CHARACTERS_PER_TOKEN = 3.0
"""Fewer than the four of English text, so that the estimate is rather too high."""

MAX_BYTES = 64 * 2**20
"""A larger file is rejected before it is parsed."""

_BINARY = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffd\ufffe\uffff]|%PDF-\d?\.?\d?")
_BLOCKS = frozenset(
    [
        "p",
        "div",
        "section",
        "article",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "li",
        "tr",
        "br",
        "pre",
        "table",
        "ul",
        "ol",
    ]
)
_HIDDEN = frozenset(["script", "style", "noscript", "svg", "head"])


class UnreadableError(SourceError):
    """The file has no text that can be read."""


def read_text(data: bytes, *, max_tokens: int) -> PaperText:
    """Return the text of a paper's file. Raises UnreadableError, with one line."""
    if len(data) > MAX_BYTES:
        raise UnreadableError(f"the file has {len(data):,} bytes, and {MAX_BYTES:,} are the limit")
    limit = int(max_tokens * CHARACTERS_PER_TOKEN)
    kind = format_of(data)
    # A PDF is parsed page by page, so pages behind the limit need not be read.
    text = clean(_pdf(data, limit * 2) if kind == "pdf" else _decoded(data, kind))
    if len(text) < 200:
        raise UnreadableError(
            f"the {kind} file has {len(text)} characters of text: it is empty, or only has images"
        )
    kept = text[:limit]
    return PaperText(
        text=kept,
        format=kind,
        raw_sha256=hashlib.sha256(data).hexdigest(),
        sha256=hashlib.sha256(kept.encode()).hexdigest(),
        tokens=estimate_tokens(kept),
        left_out_characters=len(text) - len(kept),
    )


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
    """`pdf`, `html`, `latex` or `text`, by content. Raises UnreadableError for binary data."""
    head = data[:4096]
    # Readers accept a header within the first 1,024 bytes; a text with one has no end mark.
    if head.lstrip().startswith(b"%PDF-") or (b"%PDF-" in head[:1024] and b"%%EOF" in data[-2048:]):
        return "pdf"
    if b"\x00" in data[:65536]:
        raise UnreadableError("the file is binary, and not a PDF: give PDF, LaTeX, HTML or text")
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
        return html_text(text)
    return latex_text(text) if kind == "latex" else text


def _pdf(data: bytes, limit: int) -> str:
    import pypdf  # a tenth of a second

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # its warnings are for its developers
    parts: list[str] = []
    length = 0
    try:
        reader = pypdf.PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            raise UnreadableError("the PDF is encrypted")
        for page in reader.pages:
            parts.append(page.extract_text())
            length += len(parts[-1])
            if length > limit:
                break
    except UnreadableError:
        raise
    except Exception as error:  # noqa: BLE001  (pypdf raises anything on damaged files)
        if not parts:
            raise UnreadableError(f"the PDF is damaged ({type(error).__name__})") from None
    return "\n\n".join(parts)


def latex_text(source: str) -> str:
    """LaTeX without comments and preamble commands; formulas stay as they are."""
    text = re.sub(r"(?<!\\)%.*", "", source)
    title = re.search(r"\\title\{((?:[^{}]|\{[^{}]*\})*)\}", text)
    body = text.partition("\\begin{document}")[2].partition("\\end{document}")[0] or text
    body = re.sub(r"\\(?:maketitle|label\{[^}]*\}|bibliographystyle\{[^}]*\})", "", body)
    return f"{title[1]}\n\n{body}" if title else body


class _PageText(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del attrs
        self._hidden += tag in _HIDDEN
        if tag in _BLOCKS:
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in _HIDDEN and self._hidden > 0
        if tag in _BLOCKS:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.parts.append(data)


def html_text(source: str) -> str:
    """The visible text of a page, one line for each block."""
    parser = _PageText()
    parser.feed(source)
    parser.close()
    return "".join(parser.parts)
