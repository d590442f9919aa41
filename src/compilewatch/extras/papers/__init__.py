"""From a research paper to checked code: libraries of papers, language models, and checks.

Each kind of plug-in is one Protocol and one table, `name -> "module:Class"`, loaded lazily.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from compilewatch.records import Record

if TYPE_CHECKING:
    from compilewatch.extras.papers.records import Paper

LIBRARIES: dict[str, str] = {
    "folder": "compilewatch.extras.papers.libraries:FolderLibrary",
    "opensearch": "compilewatch.extras.papers.libraries:OpenSearchLibrary",
}

PROVIDERS: dict[str, str] = {
    "bedrock": "compilewatch.extras.papers.providers:BedrockProvider",
    "scripted": "compilewatch.extras.papers.providers:ScriptedProvider",
}


class PaperQuery(Record, frozen=True, kw_only=True):
    """Which papers to find. Exactly one of `paper_id`, `recent_days` and `text` or `dsl` is set.

    `dsl` is a query of OpenSearch's query language. `random` draws instead of ordering.
    """

    paper_id: str = ""
    recent_days: float | None = None
    text: str = ""
    dsl: dict[str, Any] | None = None
    random: bool = False
    max_papers: int = 1


class PaperLibrary(Protocol):
    """Where papers come from. Raises SourceError or UsageError, each one line."""

    name: str

    def find(self, query: PaperQuery) -> tuple[Paper, ...]:
        """Return at most `query.max_papers` papers, the best or newest first."""
        ...

    def fetch(self, paper: Paper) -> bytes:
        """Return the original file of a paper: PDF, LaTeX, HTML or text."""
        ...


class Prompt(Record, frozen=True, kw_only=True):
    """One request to a model. `schema` is the JSON schema of the reply.

    `labels` (paper, role, number) are sent along as metadata of the request.
    """

    system: str
    text: str
    schema: Mapping[str, Any]
    schema_name: str
    max_tokens: int
    labels: dict[str, str]


class Reply(Record, frozen=True, kw_only=True):
    """What a model returned. `stop_reason` is Bedrock's; `end_turn` is a complete reply."""

    text: str
    stop_reason: str
    request_id: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    latency_seconds: float | None = None


class Availability(Record, frozen=True, kw_only=True):
    """A model that a provider offers. `status` is `ACTIVE` or `LEGACY`; `ends` is RFC 3339."""

    model: str
    name: str
    status: str
    ends: str = ""
    usable: bool = True
    why: str = ""


class Provider(Protocol):
    """A language model behind one wire format. `scripted` replies say nothing about a model."""

    name: str
    scripted: bool
    model: str

    def converse(self, prompt: Prompt) -> Reply:
        """Send exactly one HTTP request. Raises CallError."""
        ...

    def available(self) -> tuple[Availability, ...]:
        """The models that can be used. Raises CallError."""
        ...

    def close(self) -> None: ...


class CallError(Exception):
    """A request failed. `transient`: a later one may succeed. `paid`: it may have been charged."""

    def __init__(
        self,
        message: str,
        *,
        code: str,
        transient: bool = False,
        paid: bool = False,
        request_id: str = "",
    ) -> None:
        super().__init__(message)
        self.code, self.transient, self.paid = code, transient, paid
        self.request_id = request_id
