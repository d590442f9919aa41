"""Papers as text, rules and prices of a project, and stored lines that were damaged."""

import io
from pathlib import Path

import pytest
from pypdf import PdfWriter
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

from compilewatch.errors import SourceError, StoreError
from compilewatch.extras.papers.calls import load_rules, price_of
from compilewatch.extras.papers.libraries import clean, estimate_tokens, read_text
from compilewatch.extras.papers.records import ModelCall, PipelineStage, StageResult
from compilewatch.extras.papers.store import JOURNAL, PaperStore

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


def test_a_pdf_of_15_megabytes_fits_into_the_limit_and_brings_no_noise() -> None:
    data = pdf(3, padding=15 * 2**20)
    assert len(data) > 15_000_000
    text = read_text(data, max_tokens=100)
    assert text.format == "pdf"
    assert text.text.startswith("Page 0. A gate weighs")
    assert estimate_tokens(text.text) <= 100
    assert text.left_out_characters > 0
    assert "\ufffd" not in text.text


@pytest.mark.parametrize(
    "data",
    [b"", b"short", b"\x00\x01" * 500, pdf(0), pdf(1)[:200], b"%PDF-1.4\n" + bytes(500)],
    ids=["empty", "short", "binary", "no page", "cut", "zeros"],
)
def test_a_file_without_text_is_said_to_be_unreadable(data: bytes) -> None:
    with pytest.raises(SourceError) as error:
        read_text(data, max_tokens=1000)
    assert "\n" not in str(error.value)


def test_no_signature_is_left_and_the_estimate_of_tokens_is_rather_too_high() -> None:
    assert "%PDF-" not in clean("%PD%PDF-1.4F-1.7 and %PDF-\x00\ufffd")
    # English text has about four characters in a token.
    assert estimate_tokens(WORDS * 100) >= len(WORDS * 100) / 4


RULE = '[[rule]]\nid = "{}"\ntext = "own"\nreason = "a test"\ndate = 2026-11-24\n'


def test_a_project_adds_rules_and_replaces_a_shipped_one(tmp_path: Path) -> None:
    shipped = load_rules(tmp_path / "none.toml")
    replaced = shipped.rule[-1].id
    path = tmp_path / "rules.toml"
    path.write_text(
        "schema_version = 1\nversion = 77\n" + RULE.format("new") + RULE.format(replaced)
    )
    rules = load_rules(path)
    earlier = [rule.id for rule in shipped.rule[:-1]]
    assert [rule.id for rule in rules.rule] == ["new", replaced, *earlier]
    assert (rules.version, rules.rule[1].text) == (77, "own")
    assert rules.sha256 != shipped.sha256


def test_a_fitting_row_of_a_project_applies_before_a_shipped_one(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(
        'schema_version = 1\n[[price]]\nmodel = "scripted"\ninput_usd = 1\noutput_usd = 2\n'
        'date = 2020-01-01\nsource = "a test"\n'
    )
    prices = [price_of(file, "scripted") for file in (tmp_path / "none.toml", path)]
    assert [price and price.input_usd for price in prices] == [0, 1]
    assert price_of(path, "no-such-model") is None


def test_a_torn_line_of_a_journal_or_of_the_ledger_costs_itself_only(tmp_path: Path) -> None:
    store = PaperStore(tmp_path)
    folder = store.folder("2401.1")
    folder.path.mkdir(parents=True)
    path = folder.path / JOURNAL
    path.write_bytes(b'{"paper": "2401')
    assert (store.ids(), len(store.damaged())) == ((), 1)
    folder.append(StageResult(paper="2401.1", stage=PipelineStage.FIND))
    assert store.ids() == ("2401.1",)
    assert [line.stage for line in folder.journal()] == [PipelineStage.FIND]
    (note,) = store.damaged()
    assert note.startswith(f"{path}:1: damaged line left out")
    first = store.ledger.begin(ModelCall(key="a"))
    ledger = store.ledger.path
    ledger.write_bytes(ledger.read_bytes() + b'{"entry": 2')
    second = store.ledger.begin(ModelCall(key="b"))
    assert [first.entry, second.entry] == [1, 2]
    assert [entry.key for entry in store.ledger.entries()] == ["a", "b"]
    assert len(store.damaged()) == 2


def test_a_folder_that_cannot_be_read_is_not_one_without_papers(tmp_path: Path) -> None:
    store = PaperStore(tmp_path)
    assert store.ids() == ()
    store.root.write_text("")
    with pytest.raises(StoreError, match="papers"):
        store.ids()
