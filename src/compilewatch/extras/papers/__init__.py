"""From a research paper to checked code: libraries of papers, language models, and checks."""

from collections.abc import Mapping
from typing import Any

from compilewatch.records import Record


class Role(Record, frozen=True, kw_only=True):
    """What a model is to do. `schema` is the JSON schema of its reply, of at most `max_tokens`."""

    system: str
    schema: Mapping[str, Any]
    max_tokens: int


class Prompt(Record, frozen=True, kw_only=True):
    """One request to a model.

    `labels` (paper, role, number) are sent along as metadata of the request.
    """

    role: Role
    text: str
    labels: dict[str, str]


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
