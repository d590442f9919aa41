"""Text of papers: any format, no binary data, within the limit."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from compilewatch.extras.papers.libraries import UnreadableError, clean, estimate_tokens, read_text
from tests.papers import INPUTS

WORDS = "A gate weighs the branch of a residual block by its input. "


def pdf(pages: int, *, padding: int = 0) -> bytes:
    """A PDF with a line of text on each page, and streams of noise that no page shows."""
    objects = [b"<< /Type /Catalog /Pages 2 0 R >>"]
    kids = " ".join(f"{4 + 2 * n} 0 R" for n in range(pages))
    objects.append(f"<< /Type /Pages /Kids [{kids}] /Count {pages} >>".encode())
    objects.append(b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>")
    for number in range(pages):
        resources = "/Resources << /Font << /F1 3 0 R >> >>"
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] {resources} "
            f"/Contents {5 + 2 * number} 0 R >>".encode()
        )
        shown = f"BT /F1 12 Tf 50 700 Td (Page {number}. {WORDS * 3}) Tj ET".encode()
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(shown), shown))
    if padding:
        noise = bytes(range(256)) * (padding // 256)
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(noise), noise))
    out = io.BytesIO(b"")
    out.write(b"%PDF-1.4\n")
    offsets = []
    for number, body in enumerate(objects, 1):
        offsets.append(out.tell())
        out.write(b"%d 0 obj\n%s\nendobj\n" % (number, body))
    start = out.tell()
    out.write(b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1))
    for offset in offsets:
        out.write(b"%010d 00000 n \n" % offset)
    out.write(
        b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, start)
    )
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
