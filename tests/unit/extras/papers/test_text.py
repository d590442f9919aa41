"""Text of papers: any format, no binary data, within the limit."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from pypdf import PdfWriter
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

from compilewatch.extras.papers.libraries import UnreadableError, clean, estimate_tokens, read_text
from tests.papers import INPUTS

WORDS = "A gate weighs the branch of a residual block by its input. "


def pdf(pages: int, *, padding: int = 0) -> bytes:
    """A PDF with a line of text on each page, and a stream of noise that no page shows."""
    writer = PdfWriter()
    name = NameObject
    kinds = {"/Type": "/Font", "/Subtype": "/Type1", "/BaseFont": "/Helvetica"}
    font = DictionaryObject({name(key): name(value) for key, value in kinds.items()})
    fonts = DictionaryObject({name("/F1"): font})
    for number in range(pages):
        shown = DecodedStreamObject()
        shown.set_data(f"BT /F1 12 Tf 50 700 Td (Page {number}. {WORDS * 3}) Tj ET".encode())
        page = writer.add_blank_page(600, 800)
        page[name("/Resources")] = DictionaryObject({name("/Font"): fonts})
        page[name("/Contents")] = writer._add_object(shown)
    noise = DecodedStreamObject()
    noise.set_data(bytes(range(256)) * (padding // 256))
    writer._add_object(noise)
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


@pytest.mark.parametrize(
    "name", ["gated-residual.tex", "low-rank-mixing.md", "cosine-attention.html"]
)
def test_the_shipped_papers_are_readable(name: str) -> None:
    text = read_text((INPUTS / "library" / name).read_bytes(), max_tokens=10_000)
    assert text.format == {"tex": "latex", "md": "text", "html": "html"}[Path(name).suffix[1:]]
    assert text.left_out_characters == 0
    assert "<p>" not in text.text
    assert "\\documentclass" not in text.text
    assert "reports no experiments" in " ".join(text.text.split())


def test_a_pdf_of_15_megabytes_fits_into_the_limit_and_brings_no_noise() -> None:
    data = pdf(3, padding=15 * 2**20)
    assert len(data) > 15_000_000
    text = read_text(data, max_tokens=100)
    assert text.format == "pdf"
    assert text.text.startswith("Page 0. A gate weighs")
    assert text.tokens <= 100
    assert text.left_out_characters > 0
    assert "\ufffd" not in text.text


@pytest.mark.parametrize(
    "data",
    [b"", b"short", b"\x00\x01" * 500, pdf(0), pdf(1)[:200], b"%PDF-1.4\n" + bytes(500)],
    ids=["empty", "short", "binary", "no page", "cut", "zeros"],
)
def test_a_file_without_text_is_said_to_be_unreadable(data: bytes) -> None:
    with pytest.raises(UnreadableError) as error:
        read_text(data, max_tokens=1000)
    assert "\n" not in str(error.value)


def test_no_signature_is_left_when_parts_of_it_join() -> None:
    assert "%PDF-" not in clean("%PD%PDF-1.4F-1.7 and %PDF-\x00\ufffd")


def test_the_estimate_of_tokens_is_rather_too_high() -> None:
    # English text has about four characters in a token.
    assert estimate_tokens(WORDS * 100) >= len(WORDS * 100) / 4
