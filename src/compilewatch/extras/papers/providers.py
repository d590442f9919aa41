"""Language models: those of Bedrock, by its Converse API, and prepared replies."""

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from botocore import exceptions

from compilewatch import aws
from compilewatch.errors import SourceError
from compilewatch.extras.papers import CallError, Prompt
from compilewatch.extras.papers.libraries import estimate_tokens
from compilewatch.extras.papers.records import ModelCall
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

    def __init__(self, model: str, *, region: str = "", **options: Any) -> None:
        """`options` are further arguments of `aws.client`."""
        self.model = model
        self._region = region
        timeouts = {"read_timeout": READ_TIMEOUT_SECONDS, "connect_timeout": 10.0}
        self._arguments: dict[str, Any] = {**timeouts, "region": region, **options}

    def converse(self, prompt: Prompt) -> ModelCall:
        """Send exactly one HTTP request and return what is known of its reply. Raises CallError."""
        role = prompt.role
        schema = msgspec.json.encode(role.schema).decode()
        try:
            response = self._runtime.converse(
                modelId=self.model,
                system=[{"text": role.system}],
                messages=[{"role": "user", "content": [{"text": prompt.text}]}],
                # No temperature: newer models reject sampling parameters.
                inferenceConfig={"maxTokens": role.max_tokens},
                outputConfig={
                    "textFormat": {
                        "type": "json_schema",
                        "structure": {
                            "jsonSchema": {"name": prompt.labels["role"], "schema": schema}
                        },
                    }
                },
                requestMetadata={name: value[:256] for name, value in prompt.labels.items()},
            )
        except (exceptions.BotoCoreError, exceptions.ClientError) as error:
            raise self._error(error) from None
        return reply_of(response)

    def available(self) -> tuple[dict[str, Any], ...]:
        """The text models of the region, or the named one, with the life cycle of each.

        `status` is `ACTIVE` or `LEGACY`, and `ends` RFC 3339 or empty; `why` says why one cannot
        be used, else it is empty. Raises CallError.
        """
        try:
            client = aws.client("bedrock", **self._arguments)
            if self.model:
                base = foundation_model(self.model)
                details = client.get_foundation_model(modelIdentifier=base)["modelDetails"]
                return (_availability(details, by_profile=base != self.model),)
            listed = client.list_foundation_models(byOutputModality="TEXT")["modelSummaries"]
        except (exceptions.BotoCoreError, exceptions.ClientError) as error:
            raise self._error(error) from None
        return tuple(sorted((_availability(row) for row in listed), key=lambda row: row["model"]))

    def close(self) -> None:
        if "_runtime" in vars(self):
            self._runtime.close()

    @functools.cached_property
    def _runtime(self) -> Any:
        return aws.client("bedrock-runtime", **self._arguments)

    def _error(self, error: Exception) -> CallError:
        code, message, _ = aws.error_details(error)
        text = f"Bedrock: {aws.explain(error, self._region)}"
        if not isinstance(error, exceptions.ClientError):
            # The connection failed before the request, or ended after it; only the first is free.
            never = exceptions.EndpointConnectionError | exceptions.ConnectTimeoutError
            lost = isinstance(error, aws.CONNECTION)
            paid = lost and not isinstance(error, never)
            return CallError(text, code=type(error).__name__, transient=lost, paid=paid)
        metadata = error.response.get("ResponseMetadata", {})
        status = metadata.get("HTTPStatusCode", 0)
        about_model = code != "ValidationException" or "model" in message.lower()
        return CallError(
            text + (_ADVICE.get(code, "") if about_model else ""),
            code=code or str(status),
            transient=code in _TRANSIENT or status == 429 or status >= 500,
            paid=code in _MAY_BE_PAID,
            request_id=metadata.get("RequestId", ""),
        )


def reply_of(response: Mapping[str, Any]) -> ModelCall:
    """The reply in a response of Converse. Unknown parts of the content are left out."""
    message = response.get("output", {}).get("message", {})
    usage = response.get("usage", {})
    return ModelCall(
        reply="".join(part.get("text", "") for part in message.get("content", ())),
        stop_reason=response.get("stopReason", ""),
        request_id=response.get("ResponseMetadata", {}).get("RequestId", ""),
        input_tokens=usage.get("inputTokens", 0),
        output_tokens=usage.get("outputTokens", 0),
    )


_ADVICE = {
    "AccessDeniedException": ": enable the model for this account in the Bedrock console",
    "ResourceNotFoundException": ": the model does not exist here, or is past its end of life; see "
    "`papers preflight`",
    "ValidationException": ": no such model, or it cannot do this; see `papers preflight`",
}


def foundation_model(model: str) -> str:
    """The id of the model behind an inference profile, `us.anthropic.…` or its ARN."""
    return _PROFILE.sub("", model.rpartition("/")[2])


def _availability(details: Mapping[str, Any], *, by_profile: bool = False) -> dict[str, Any]:
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
    return {
        "model": details["modelId"],
        "name": details.get("modelName", ""),
        "status": status,
        "ends": ends.isoformat() if ends is not None else "",
        "why": why,
    }


class ScriptedProvider:
    """Replies from `<folder>/<paper>/`: plan.json, code.N.py with code.N.json, review.N.json.

    A later version without a file of its own gets the last one. They say nothing about a model.
    """

    name = "scripted"
    scripted = True
    model = "scripted"

    def __init__(self, folder: Path) -> None:
        """Raises SourceError if the folder does not exist."""
        if not folder.is_dir():
            raise SourceError(
                f"the prepared replies {folder} do not exist: use a checkout of compilewatch, or "
                "--provider bedrock"
            )
        self._folder = folder

    def converse(self, prompt: Prompt) -> ModelCall:
        labels = prompt.labels
        name = labels["role"].replace("generate", "code")
        numbers = range(int(labels["number"]), -1, -1)
        names = ["plan"] if name == "plan" else [f"{name}.{number}" for number in numbers]
        folder = self._folder / safe_name(labels["paper"])
        path = next(filter(Path.is_file, (folder / f"{name}.json" for name in names)), None)
        if path is None:
            message = f"no prepared reply for {labels}"
            raise CallError(message, code="ResourceNotFoundException")
        reply = msgspec.json.decode(path.read_bytes())
        if name == "code":
            reply["source"] = path.with_suffix(".py").read_text(encoding="utf-8")
        text = msgspec.json.encode(reply).decode()
        return ModelCall(
            reply=text,
            stop_reason="end_turn",
            input_tokens=estimate_tokens(prompt.text),
            output_tokens=estimate_tokens(text),
        )

    def available(self) -> tuple[dict[str, Any], ...]:
        about = {"model": self.model, "name": "prepared replies", "status": "ACTIVE"}
        return ({**about, "ends": "", "why": ""},)

    def close(self) -> None:
        """Do nothing: it has no connection."""


Provider = BedrockProvider | ScriptedProvider
