"""What errors of the Hub say about a repository, in words."""

from __future__ import annotations

from huggingface_hub.errors import (
    DisabledRepoError,
    GatedRepoError,
    HfHubHTTPError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)


def problem_of(exc: Exception) -> str:
    """Return why a model has no configuration, as a skip reason."""
    match exc:
        case GatedRepoError():
            return "gated: accept its terms on the Hub and set HF_TOKEN"
        case RepositoryNotFoundError():
            return "private or deleted"
        case DisabledRepoError():
            return "disabled by the Hub"
        case RevisionNotFoundError():
            return "its commit was deleted: pull again"
        case RemoteEntryNotFoundError():
            return "it has no config.json"
        case HfHubHTTPError() if exc.response.status_code in (401, 403):
            return "access denied: check HF_TOKEN"
    return f"its configuration cannot be downloaded: {one_line(exc)}"


def one_line(exc: BaseException) -> str:
    """Return the message of an error as one line."""
    return " ".join(str(exc).split()) or type(exc).__name__
