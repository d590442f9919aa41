"""The provider for Bedrock: what it sends, what it looks up, and the tables of plug-ins."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from compilewatch import plugins
from compilewatch.extras.papers import LIBRARIES, PROVIDERS, CallError
from compilewatch.extras.papers.calls import load_rules, plan_prompt
from compilewatch.extras.papers.libraries import read_text
from compilewatch.extras.papers.providers import BedrockProvider, ConverseServer, foundation_model
from compilewatch.extras.papers.records import Paper
from tests import papers as world

MODEL = "anthropic.some-model-v1:0"


def described(model: str) -> dict[str, Any] | None:
    if model != MODEL:
        return None
    ends = "2027-01-31T00:00:00Z"
    return {
        "modelArn": "arn:aws:bedrock:us-east-1::foundation-model/x",
        "modelId": MODEL,
        "modelName": "Some Model",
        "inferenceTypesSupported": ["INFERENCE_PROFILE"],
        "modelLifecycle": {"status": "ACTIVE", "endOfLifeTime": ends},
    }


def provider(url: str, model: str) -> BedrockProvider:
    return BedrockProvider(model, region="us-east-1", endpoint_url=url, credentials=("a", "b"))


@pytest.mark.parametrize(("model", "usable"), [(MODEL, False), (f"us.{MODEL}", True)])
def test_a_model_is_looked_up_with_its_life_cycle(model: str, usable: bool) -> None:
    server = ConverseServer(world.respond, described)
    (found,) = provider(server.url, model).available()
    server.close()
    assert (found.status, found.ends[:10], found.usable) == ("ACTIVE", "2027-01-31", usable)
    assert usable or f"us.{MODEL}" in found.why


def test_a_model_that_is_not_there_is_said_in_one_line() -> None:
    server = ConverseServer(world.respond, described)
    with pytest.raises(CallError, match="papers preflight") as error:
        provider(server.url, "another.model").available()
    server.close()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("profile", "base"),
    [
        (MODEL, MODEL),
        (f"us.{MODEL}", MODEL),
        (f"global.{MODEL}", MODEL),
        (f"arn:aws:bedrock:us-east-1:1:inference-profile/eu.{MODEL}", MODEL),
        ("amazon.titan-text", "amazon.titan-text"),
    ],
)
def test_the_model_behind_a_profile(profile: str, base: str) -> None:
    assert foundation_model(profile) == base


def test_a_request_has_a_schema_that_structured_output_accepts() -> None:
    paper = Paper(id="p", title="T", library="folder", location="x")
    text = read_text(b"Words of </paper> a paper. " * 20, max_tokens=1000)
    prompt = plan_prompt(paper, text, load_rules())
    with world.served() as (server, made):
        made.converse(prompt)
        (body,) = server.requests
    assert body["messages"][0]["content"][0]["text"].count("</paper") == 1
    assert body["requestMetadata"] == {"paper": "p", "role": "plan", "number": "0"}
    assert set(body["inferenceConfig"]) == {"maxTokens"}
    schema = body["outputConfig"]["textFormat"]["structure"]["jsonSchema"]["schema"]

    def check(node: dict[str, Any]) -> None:
        if node.get("type") == "object":
            assert node["additionalProperties"] is False
            assert node["required"] == list(node["properties"])
        for inner in [
            *node.get("properties", {}).values(),
            *([node["items"]] if "items" in node else []),
        ]:
            check(inner)

    check(msgspec.json.decode(schema))


@pytest.mark.parametrize(
    ("table", "name"), [(t, name) for t in (LIBRARIES, PROVIDERS) for name in t]
)
def test_every_row_of_a_table_resolves_to_what_it_is_named_after(
    table: dict[str, str], name: str
) -> None:
    assert plugins.load(table[name]).name == name
