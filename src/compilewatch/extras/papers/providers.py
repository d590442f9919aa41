"""Language models. Each speaks Bedrock's Converse API over HTTP."""

from __future__ import annotations

import contextlib
import re
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
from botocore import exceptions

from compilewatch import aws
from compilewatch.errors import SourceError
from compilewatch.extras.papers import Availability, CallError, Prompt, Reply
from compilewatch.extras.papers.libraries import estimate_tokens
from compilewatch.files import safe_name

READ_TIMEOUT_SECONDS = 600.0
"""The first use of a schema can take minutes, and a long module too."""

_TRANSIENT = aws.BUSY | {
    *("ModelNotReadyException", "ModelTimeoutException", "ServiceUnavailableException"),
    *("InternalServerException", "ModelErrorException", "TooManyRequestsException"),
}
_PROFILE = re.compile(r"^(?:us|eu|ap|apac|jp|au|ca|sa|us-gov|global)\.(?=[a-z0-9-]+\.)")
"""The region in the id of an inference profile."""

_MAY_BE_PAID = frozenset({"ModelTimeoutException", "ModelErrorException"})


class BedrockProvider:
    """One model of Bedrock, by its id or the ARN or id of an inference profile."""

    name = "bedrock"
    scripted = False

    def __init__(
        self,
        model: str,
        *,
        region: str = "",
        profile: str = "",
        endpoint_url: str = "",
        credentials: tuple[str, str] | None = None,
        read_timeout_seconds: float = READ_TIMEOUT_SECONDS,
    ) -> None:
        self.model = model
        self._region = region
        self._arguments: dict[str, Any] = {
            "region": region,
            "profile": profile,
            "endpoint_url": endpoint_url,
            "credentials": credentials,
            "read_timeout": read_timeout_seconds,
            "connect_timeout": 10.0,
        }
        self._runtime: Any = None
        self._lock = threading.Lock()

    def converse(self, prompt: Prompt) -> Reply:
        schema = msgspec.json.encode(prompt.schema).decode()
        try:
            response = self._client().converse(
                modelId=self.model,
                system=[{"text": prompt.system}],
                messages=[{"role": "user", "content": [{"text": prompt.text}]}],
                # No temperature: newer models reject sampling parameters.
                inferenceConfig={"maxTokens": prompt.max_tokens},
                outputConfig={
                    "textFormat": {
                        "type": "json_schema",
                        "structure": {"jsonSchema": {"name": prompt.schema_name, "schema": schema}},
                    }
                },
                requestMetadata={name: value[:256] for name, value in prompt.labels.items()},
            )
        except (exceptions.BotoCoreError, exceptions.ClientError) as error:
            raise self._error(error) from None
        return reply_of(response)

    def available(self) -> tuple[Availability, ...]:
        """The text models of the region, or the named one, with their life cycle."""
        try:
            client = aws.client("bedrock", **self._arguments)
            if self.model:
                base = foundation_model(self.model)
                details = client.get_foundation_model(modelIdentifier=base)["modelDetails"]
                return (_availability(details, by_profile=base != self.model),)
            listed = client.list_foundation_models(byOutputModality="TEXT")["modelSummaries"]
        except (exceptions.BotoCoreError, exceptions.ClientError) as error:
            raise self._error(error) from None
        return tuple(sorted((_availability(row) for row in listed), key=lambda a: a.model))

    def close(self) -> None:
        if self._runtime is not None:
            self._runtime.close()

    def _client(self) -> Any:
        with self._lock:
            if self._runtime is None:
                self._runtime = aws.client("bedrock-runtime", **self._arguments)
            return self._runtime

    def _error(self, error: Exception) -> CallError:
        code, message, _ = aws.error_details(error)
        request_id = ""
        if isinstance(error, exceptions.ClientError):
            metadata = error.response.get("ResponseMetadata", {})
            request_id = metadata.get("RequestId", "")
            status = metadata.get("HTTPStatusCode", 0)
            transient = code in _TRANSIENT or status == 429 or status >= 500
            text = f"Bedrock: {aws.explain(error, self._region)}{_advice(code, message)}"
            return CallError(
                text,
                code=code or str(status),
                transient=transient,
                paid=code in _MAY_BE_PAID,
                request_id=request_id,
            )
        # The connection failed before the request, or ended after it; only the first is free.
        connected = not isinstance(
            error, exceptions.EndpointConnectionError | exceptions.ConnectTimeoutError
        )
        return CallError(
            f"Bedrock: {aws.explain(error, self._region)}",
            code=type(error).__name__,
            transient=isinstance(error, aws.CONNECTION),
            paid=connected and isinstance(error, aws.CONNECTION),
        )


def reply_of(response: Mapping[str, Any]) -> Reply:
    """The reply in a response of Converse. Unknown parts of the content are left out."""
    message = response.get("output", {}).get("message", {})
    usage = response.get("usage", {})
    latency = response.get("metrics", {}).get("latencyMs")
    return Reply(
        text="".join(part.get("text", "") for part in message.get("content", ())),
        stop_reason=response.get("stopReason", ""),
        request_id=response.get("ResponseMetadata", {}).get("RequestId", ""),
        input_tokens=usage.get("inputTokens", 0),
        output_tokens=usage.get("outputTokens", 0),
        cache_read_tokens=usage.get("cacheReadInputTokens", 0),
        cache_write_tokens=usage.get("cacheWriteInputTokens", 0),
        latency_seconds=None if latency is None else latency / 1000,
    )


def _advice(code: str, message: str) -> str:
    if code == "AccessDeniedException":
        return ": enable the model for this account in the Bedrock console"
    if code == "ResourceNotFoundException":
        return ": the model does not exist here, or is past its end of life; see `papers preflight`"
    if code == "ValidationException" and "model" in message.lower():
        return ": no such model, or it cannot do this; see `papers preflight`"
    return ""


def foundation_model(model: str) -> str:
    """The id of the model behind an inference profile, `us.anthropic.…` or its ARN."""
    return _PROFILE.sub("", model.rpartition("/")[2])


def _availability(details: Mapping[str, Any], *, by_profile: bool = False) -> Availability:
    """How a model can be used now. Some are used by the id of an inference profile only."""
    cycle = details.get("modelLifecycle", {})
    ends = cycle.get("endOfLifeTime")
    kinds = details.get("inferenceTypesSupported", [])
    status = cycle.get("status", "unknown")
    why = ""
    if status == "LEGACY":
        why = "it is being retired: choose an active one"
    elif "ON_DEMAND" not in kinds and not by_profile:
        why = (
            "it needs an inference profile: use the profile's id, such as us." + details["modelId"]
        )
    return Availability(
        model=details["modelId"],
        name=details.get("modelName", ""),
        status=status,
        ends=ends.isoformat() if ends is not None else "",
        usable=not why,
        why=why,
    )


_CONVERSE = re.compile(r"/model/(.+)/converse")
_MODEL = re.compile(r"/foundation-models/(.+)")


@dataclass(frozen=True, kw_only=True)
class ErrorResponse:
    """An error response: its HTTP status and the name that AWS puts into `x-amzn-ErrorType`."""

    status: int
    code: str
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """The connection ends without a response, after `seconds`."""

    seconds: float = 0.0


Response = Reply | ErrorResponse | Dropped


class ConverseServer:
    """Serves `respond`, which gets the decoded body of each request and the model's id."""

    def __init__(
        self,
        respond: Callable[[str, dict[str, Any]], Response],
        models: Callable[[str], dict[str, Any] | None] = lambda _: None,
    ) -> None:
        outer = self
        self.requests: list[dict[str, Any]] = []
        self._respond, self._models = respond, models

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                outer._converse(self)

            def do_GET(self) -> None:
                outer._describe(self)

            def log_message(self, format: str, *args: object) -> None:
                del format, args

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        # By default, `close` would wait for up to half a second.
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _converse(self, handler: BaseHTTPRequestHandler) -> None:
        length = int(handler.headers.get("Content-Length", 0))
        body = msgspec.json.decode(handler.rfile.read(length) or b"{}")
        pattern_match = _CONVERSE.fullmatch(handler.path)
        if pattern_match is None:
            _send(handler, 404, {"message": "not found"}, "UnknownOperationException")
            return
        self.requests.append(body)
        response = self._respond(unquote(pattern_match[1]), body)
        if isinstance(response, Dropped):
            threading.Event().wait(response.seconds)
            handler.close_connection = True
        elif isinstance(response, ErrorResponse):
            _send(handler, response.status, {"message": response.message}, response.code)
        else:
            _send(handler, 200, _body_of(response))

    def _describe(self, handler: BaseHTTPRequestHandler) -> None:
        passage = _MODEL.fullmatch(handler.path)
        details = self._models(unquote(passage[1])) if passage else None
        if details is None:
            error = {"message": "The provided model identifier is invalid."}
            _send(handler, 404, error, "ResourceNotFoundException")
            return
        _send(handler, 200, {"modelDetails": details})


def _body_of(reply: Reply) -> dict[str, Any]:
    return {
        "output": {"message": {"role": "assistant", "content": [{"text": reply.text}]}},
        "stopReason": reply.stop_reason,
        "usage": {
            "inputTokens": reply.input_tokens,
            "outputTokens": reply.output_tokens,
            "totalTokens": reply.input_tokens + reply.output_tokens,
        },
        "metrics": {"latencyMs": 1},
    }


def _send(
    handler: BaseHTTPRequestHandler, status: int, body: dict[str, Any], error: str = ""
) -> None:
    data = msgspec.json.encode(body)
    with contextlib.suppress(OSError):
        handler.send_response(status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(data)))
        handler.send_header("x-amzn-RequestId", str(uuid.uuid4()))
        if error:
            handler.send_header("x-amzn-ErrorType", error)
        handler.end_headers()
        handler.wfile.write(data)


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
            error = f"no prepared reply for {labels}"
            return ErrorResponse(status=404, code="ResourceNotFoundException", message=error)
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
