"""Where papers come from: a folder, or an OpenSearch index with files on S3."""

from __future__ import annotations

from pathlib import Path

from compilewatch import plugins
from compilewatch.extras.papers import LIBRARIES, PaperLibrary
from compilewatch.extras.papers.settings import PapersSettings


def open_library(settings: PapersSettings, *, cache: Path) -> PaperLibrary:
    """The library that the settings name; `auto` is OpenSearch if its endpoint is set.

    Raises UsageError for an unknown one.
    """
    name = settings.library
    if name == "auto":
        name = "opensearch" if settings.opensearch_endpoint else "folder"
    library: PaperLibrary = plugins.find("library", LIBRARIES, name)(settings, cache=cache)
    return library
