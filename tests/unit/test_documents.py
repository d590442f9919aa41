"""The checker of links, and what contributors' tools need."""

from pathlib import Path

import pytest

from scripts.check_links import anchors, broken


def test_headings_are_spelt_as_github_does(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# XLA, and what it says\n\n## `outputs/`: runs\n\n## Twice\n\n## Twice\n")
    assert anchors(page) == {"xla-and-what-it-says", "outputs-runs", "twice", "twice-1"}


@pytest.mark.parametrize(
    ("link", "is_broken"),
    [
        ("other.md", False),
        ("other.md#a-heading", False),
        ("#here", False),
        ("https://example.org/nowhere", False),
        ("other.md#nothing", True),
        ("missing.md", True),
        ("images/missing.png", True),
        ("#nothing", True),
    ],
)
def test_broken_links_are_found(tmp_path: Path, link: str, is_broken: bool) -> None:
    (tmp_path / "other.md").write_text("# A heading\n")
    page = tmp_path / "page.md"
    page.write_text(f"# Here\n\n[a link]({link}) ![a picture]({link})\n")
    assert set(broken(page)) == ({link} if is_broken else set())
