"""Prepared replies for the papers that ship with compilewatch, over the wire format of Bedrock.

The real client of boto3 talks to a server of this process. Nothing that these replies lead to says
anything about a model: calls, versions of code and results are marked as scripted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from compilewatch.errors import SourceError
from compilewatch.extras.papers import Availability, Prompt, Reply
from compilewatch.extras.papers.providers.bedrock import BedrockProvider
from compilewatch.extras.papers.providers.wire import ConverseServer, ErrorResponse, Response
from compilewatch.extras.papers.text import estimate_tokens
from compilewatch.files import safe_name

MODEL = "scripted"


class ScriptedProvider:
    """Replies from `<folder>/<paper>/`: plan.json, code.N.py with code.N.json, review.N.json."""

    name = "scripted"
    scripted = True
    model = MODEL

    def __init__(self, folder: Path) -> None:
        """Raises SourceError if the folder does not exist."""
        if not folder.is_dir():
            raise SourceError(
                f"the prepared replies {folder} do not exist: use a checkout of compilewatch, or "
                "--provider bedrock"
            )
        self._folder = folder
        self._server = ConverseServer(self._respond)
        self._client = BedrockProvider(
            MODEL,
            region="us-east-1",
            endpoint_url=self._server.url,
            credentials=("scripted", "scripted"),
            read_timeout_seconds=30.0,
        )

    def converse(self, prompt: Prompt) -> Reply:
        return self._client.converse(prompt)

    def available(self) -> tuple[Availability, ...]:
        return (Availability(model=MODEL, name="prepared replies", status="ACTIVE"),)

    def close(self) -> None:
        self._client.close()
        self._server.close()

    def _respond(self, model: str, body: dict[str, Any]) -> Response:
        del model
        labels = body.get("requestMetadata", {})
        folder = self._folder / safe_name(labels.get("paper", ""))
        text = _reply(folder, labels.get("role", ""), int(labels.get("number", "0")))
        if text is None:
            said = f"no prepared reply for {labels}"
            return ErrorResponse(status=404, code="ResourceNotFoundException", message=said)
        prompt = "".join(
            part["text"] for message in body["messages"] for part in message["content"]
        )
        return Reply(
            text=text,
            stop_reason="end_turn",
            input_tokens=estimate_tokens(prompt),
            output_tokens=estimate_tokens(text),
        )


def _reply(folder: Path, role: str, number: int) -> str | None:
    """The text of a prepared reply. A later version without a file of its own gets the last."""
    name = {"plan": "plan", "generate": "code", "review": "review"}.get(role)
    if name is None:
        return None
    for n in range(number, -1, -1):
        path = folder / ("plan.json" if role == "plan" else f"{name}.{n}.json")
        if not path.is_file():
            continue
        reply = msgspec.json.decode(path.read_bytes())
        if role == "generate":
            reply["source"] = path.with_suffix(".py").read_text(encoding="utf-8")
        return msgspec.json.encode(reply).decode()
    return None
