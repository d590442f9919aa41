"""From a research paper to checked code: libraries of papers, language models, and checks."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from compilewatch.records import Record

if TYPE_CHECKING:
    from compilewatch.extras.papers.records import ModelCall, Paper


class PaperLibrary(Protocol):
    """Where papers come from. Raises SourceError or UsageError, each one line."""

    name: str

    def find(
        self, query: str | Mapping[str, Any], most: int, *, random: bool = False
    ) -> tuple["Paper", ...]:
        """Return at most `most` papers, the best or newest first, or drawn at random.

        `query` are words (none: all papers), or a clause of OpenSearch's query language.
        """
        ...

    def fetch(self, paper: "Paper") -> bytes:
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


class Provider(Protocol):
    """A language model behind one wire format. `scripted` replies say nothing about a model."""

    name: str
    scripted: bool
    model: str

    def converse(self, prompt: Prompt) -> "ModelCall":
        """Send exactly one HTTP request and return what is known of its reply. Raises CallError."""
        ...

    def available(self) -> tuple[dict[str, Any], ...]:
        """The models that can be used, with the life cycle of each. Raises CallError.

        `status` is `ACTIVE` or `LEGACY`, and `ends` RFC 3339 or empty; `why` says what is wrong
        with one that is not `usable`.
        """
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
