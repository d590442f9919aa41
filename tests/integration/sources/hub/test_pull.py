from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from compilewatch.errors import ConfigError, SourceError, UsageError
from compilewatch.records import ConfigBuild, LibraryBuild, ModelSpec, Part
from compilewatch.sources.hub import pull as pulling
from compilewatch.sources.hub.pull import RetryLimits, pull
from compilewatch.sources.hub.pulled import HubSource, PullReport, read_pulled
from compilewatch.sources.popularity import read_popularity
from tests.doubles.misbehaving import Fault, dripping_body, dripping_headers, misbehaving
from tests.integration.sources.hub_double import HubDouble, HubModel, serving

ACORN = {"model_type": "acorn", "architectures": ["AcornModel"], "hidden_size": 8}
REMOTE = {"model_type": "oak", "architectures": ["OakModel"], "auto_map": {"AutoModel": "m.Oak"}}
HASTY = RetryLimits(attempts=3, first_wait_seconds=0.01, longest_wait_seconds=0.05)
HURRIED = RetryLimits(attempts=1, timeout_seconds=1.0)


def model(name: str, downloads: int, config: Any = None, **more: Any) -> HubModel:
    return HubModel(id=f"org/{name}", downloads=downloads, config=config, **more)


CATALOGUE = (
    model("acorn", 900, ACORN, likes=1, license="mit", pipeline_tag="text-generation"),
    model("gated", 800, ACORN, gated=True),
    model("deleted", 700, ACORN, deleted=True),
    model("diffuser", 600, None, library="diffusers"),
    model("remote", 500, REMOTE, likes=9),
    model("malformed", 400, '{"model_type": '),
    model("unknown", 300, {"model_type": "birch"}),
    model("twin", 200, ACORN | {"_name_or_path": "elsewhere"}, trending=5),
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPILEWATCH_CACHE", str(tmp_path / "cache"))
    for name in ("HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def hub() -> Iterator[HubDouble]:
    with serving(HubDouble(list(CATALOGUE), page_size=3)) as served:
        yield served


@pytest.fixture
def listing(tmp_path: Path) -> Path:
    return tmp_path / "pulled" / "models.toml"


@pytest.fixture
def pull_from(hub: HubDouble, listing: Path, tmp_path: Path) -> Callable[..., PullReport]:
    def run(**arguments: Any) -> PullReport:
        settings: dict[str, Any] = {
            "endpoint": hub.endpoint,
            "output": listing,
            "cache": tmp_path / "hub-cache",
            "limits": HASTY,
            "token": False,
        }
        return pull(**(settings | arguments))

    return run


def specs(listing: Path, miniature: Path, **more: Any) -> dict[str, ModelSpec]:
    found = HubSource(path=listing, transformers=miniature, **more).models()
    return {spec.name.removeprefix("org/"): spec for spec in found}


def names(listing: Path) -> list[str]:
    return [m.repository.removeprefix("org/") for m in read_pulled(listing).model]


def test_models_are_pinned_and_sorted_out(
    pull_from: Callable[..., PullReport], hub: HubDouble, listing: Path, miniature: Path
) -> None:
    report = pull_from(top=8)
    assert (report.models, report.configs, report.partial) == (8, 4, False)
    assert report.problems == {
        "gated: accept its terms on the Hub and set HF_TOKEN": 1,
        "private or deleted": 1,
        pulling.NO_CONFIGURATION: 1,
        "malformed configuration: config.json, line 1: not JSON: Expecting value": 1,
    }
    found = specs(listing, miniature)
    assert list(found) == [m.id.removeprefix("org/") for m in CATALOGUE]
    acorn = found["acorn"]
    assert acorn.skip_reason is None
    assert acorn.revision == hub.models["org/acorn"].sha
    assert (acorn.downloads, acorn.license, acorn.family) == (900, "mit", "acorn")
    assert (acorn.architecture, acorn.task) == ("AcornModel", "text")
    assert found["gated"].gated
    assert (found["remote"].skip_reason or "").startswith("remote code")
    assert found["unknown"].skip_reason == "transformers 9.9.9 has no model type birch"
    # One configuration under two names is one question.
    builds = [found[name].build for name in ("acorn", "twin")]
    assert isinstance(builds[0], ConfigBuild)
    assert isinstance(builds[1], ConfigBuild)
    assert builds[0].config_sha256 == builds[1].config_sha256


def test_only_configuration_files_are_fetched(
    pull_from: Callable[..., PullReport], hub: HubDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull_from(top=8)
    resolved = [request for request in hub.requests if "/resolve/" in request]
    assert len(resolved) >= 8
    assert all(request.endswith("/config.json") for request in resolved)
    monkeypatch.setattr(pulling, "CONFIG_FILES", frozenset())
    with pytest.raises(UsageError, match=r"never config\.json"):
        pull_from(top=1)


PIPELINE = HubModel(
    id="org/pipeline",
    library="diffusers",
    downloads=50,
    files={
        "model_index.json": json.dumps(
            {
                "_class_name": "StableDiffusionPipeline",
                "unet": ["diffusers", "UNet2DConditionModel"],
                "text_encoder": ["transformers", "AcornModel"],
                "scheduler": ["diffusers", "PNDMScheduler"],
                "../../escape": ["diffusers", "UNet2DConditionModel"],
            }
        ),
        "unet/config.json": json.dumps({"_class_name": "UNet2DConditionModel"}),
        "text_encoder/config.json": json.dumps(ACORN),
        "../../escape/config.json": "{}",
        "unet/diffusion_pytorch_model.safetensors": None,
        "scheduler/scheduler_config.json": None,
        "model.py": None,
    },
)
CHAIN = HubModel(
    id="org/chain",
    library="sentence-transformers",
    downloads=40,
    config=ACORN,
    files={
        "modules.json": json.dumps(
            [
                {"path": "", "type": "sentence_transformers.models.Transformer"},
                {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
            ]
        ),
        "1_Pooling/config.json": json.dumps({"word_embedding_dimension": 8}),
        "sentence_bert_config.json": json.dumps({"max_seq_length": 16}),
        "model.safetensors": None,
    },
)
ADAPTER = {"peft_type": "LORA", "base_model_name_or_path": "org/acorn"}


def adapter(name: str, base: str) -> HubModel:
    config = json.dumps({**ADAPTER, "base_model_name_or_path": base})
    files = {"adapter_config.json": config, "adapter_model.safetensors": None}
    return HubModel(id=f"org/{name}", library="peft", downloads=30, files=files)


def test_all_configuration_files_of_a_repository_are_fetched_and_nothing_else(
    pull_from: Callable[..., PullReport], hub: HubDouble, listing: Path, miniature: Path
) -> None:
    added = (
        *(PIPELINE, CHAIN, adapter("adapter", "org/acorn"), adapter("closed", "org/gated")),
        HubModel(id="org/large", downloads=20, config={"model_type": "acorn", "x": "x" * 2**21}),
        HubModel(id="org/weights", downloads=10, files={"model.gguf": None, "readme.md": None}),
    )
    hub.models |= {each.id: each for each in added}

    report = pull_from(top=99)

    fetched = {
        request.partition("/resolve/")[2].partition("/")[2]
        for request in hub.requests
        if "/resolve/" in request
    }
    assert fetched == {
        *("config.json", "model_index.json", "unet/config.json", "text_encoder/config.json"),
        *("modules.json", "1_Pooling/config.json", "sentence_bert_config.json"),
        "adapter_config.json",
    }
    assert not [r for r in hub.requests if r.startswith("GET") and "large" in r]
    found = specs(listing, miniature)
    assert {name for name in found if name.startswith("pipeline")} == {
        "pipeline#unet",
        "pipeline#text_encoder",
    }
    unet = found["pipeline#unet"]
    assert (unet.part, unet.component, unet.skip_reason) == (Part.COMPONENT, "unet", None)
    assert isinstance(unet.build, LibraryBuild)
    assert Path(unet.build.configuration or "").is_relative_to(listing.parent)
    chain = found["chain"].build
    assert isinstance(chain, LibraryBuild)
    assert (Path(chain.configuration or "") / "1_Pooling" / "config.json").is_file()
    adapted = found["adapter"].build
    assert isinstance(adapted, ConfigBuild)
    assert Path(adapted.adapter_file or "").is_relative_to(listing.parent)
    assert found["adapter"].part is Part.WHOLE
    assert found["adapter"].skip_reason is None
    closed = "PEFT adapter: its base model org/gated: gated: accept its terms on the Hub and set"
    assert (found["closed"].skip_reason or "").startswith(closed)
    assert found["weights"].skip_reason == "not PyTorch: it has only GGUF weights"
    assert "are too many for a configuration" in (found["large"].skip_reason or "")
    assert report.models == 8 + len(added)


def test_the_base_pipeline_of_an_adapter_of_diffusers_is_fetched_as_far_as_the_token_reaches(
    pull_from: Callable[..., PullReport], hub: HubDouble, listing: Path, miniature: Path
) -> None:
    weights: dict[str, str | None] = {"pytorch_lora_weights.safetensors": None}
    for name, base in {"lora": "org/pipeline", "closed": "org/gated", "odd": "org/acorn"}.items():
        tags = (f"base_model:{base}", f"base_model:adapter:{base}")
        added = HubModel(
            id=f"org/{name}", library="diffusers", downloads=30, files=weights, tags=tags
        )
        hub.models[added.id] = added
    hub.models[PIPELINE.id] = PIPELINE

    pull_from(top=99)

    found = specs(listing, miniature)
    unet = found["lora#unet"]
    assert (unet.part, unet.skip_reason) == (Part.BASE_COMPONENT, None)
    assert isinstance(unet.build, LibraryBuild)
    assert "org--lora" in (unet.build.configuration or "")
    closed = "adapter of diffusers: its base pipeline org/gated: gated: accept its terms"
    assert (found["closed"].skip_reason or "").startswith(closed)
    # Its base is no pipeline.
    assert "without the configuration of a model" in (found["odd"].skip_reason or "")


def test_a_hub_that_lists_no_files_has_at_most_a_config(
    pull_from: Callable[..., PullReport], hub: HubDouble, listing: Path, miniature: Path
) -> None:
    for each in hub.models.values():
        each.lists_files = False
    pull_from(top=8)
    assert specs(listing, miniature)["acorn"].skip_reason is None
    without = specs(listing, miniature)["diffuser"].skip_reason
    assert (
        without
        == "adapter or single-file weights for diffusers, without the configuration of a model"
    )


def test_the_list_is_read_without_network(
    pull_from: Callable[..., PullReport], hub: HubDouble, listing: Path, miniature: Path
) -> None:
    pull_from(top=8)
    hub.requests.clear()
    acorn = specs(listing, miniature)["acorn"]
    assert isinstance(acorn.build, ConfigBuild)
    assert Path(acorn.build.config_file).is_relative_to(listing.parent)
    assert Path(acorn.build.config_file).read_text() == hub.models["org/acorn"].text
    assert hub.requests == []
    Path(acorn.build.config_file).unlink()
    gone = specs(listing, miniature)["acorn"]
    assert "pull again" in (gone.skip_reason or "")


def test_orders_and_filters_are_the_hubs(
    pull_from: Callable[..., PullReport], listing: Path
) -> None:
    pull_from(top=2, sort="likes")
    assert names(listing) == ["remote", "acorn"]
    pull_from(top=1, sort="trending")
    assert names(listing) == ["twin"]
    pull_from(top=9, family="acorn", library="transformers")
    assert names(listing) == ["acorn", "gated", "deleted", "twin"]
    pull_from(top=9, task="text-generation")
    assert names(listing) == ["acorn"]
    pull_from(top=9, library="diffusers")
    assert names(listing) == ["diffuser"]
    for arguments in ({"sort": "fame"}, {"top": 0}):
        with pytest.raises(UsageError):
            pull_from(**arguments)
    assert names(listing) == ["diffuser"]


def test_a_token_opens_gated_models(
    pull_from: Callable[..., PullReport], listing: Path, miniature: Path
) -> None:
    pull_from(top=2, token="hf_good")
    assert specs(listing, miniature)["gated"].skip_reason is None


def test_endpoint_and_token_of_the_environment(hub: HubDouble, listing: Path) -> None:
    script = (
        "from pathlib import Path\n"
        "from compilewatch.sources.hub.pull import pull\n"
        f"print(pull(top=2, output=Path({str(listing)!r})).configs)"
    )
    environment = os.environ | {
        "HF_ENDPOINT": hub.endpoint,
        "HF_TOKEN": "hf_good",
        "HF_HOME": str(listing.parent / "home"),
    }
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True
    )
    assert done.stdout == "2\n", done.stderr
    assert read_pulled(listing).endpoint == hub.endpoint


def test_remote_code_needs_repository_and_commit_in_the_reviewed_file(
    pull_from: Callable[..., PullReport],
    hub: HubDouble,
    listing: Path,
    miniature: Path,
    tmp_path: Path,
) -> None:
    pull_from(top=8)
    allowed = tmp_path / "remote_code.toml"
    entry = '[[allow]]\nrepository = "org/remote"\nrevision = "{}"\nreason = "r"\ndate = "d"\n'
    allowed.write_text(entry.format("0" * 40))
    refused = specs(listing, miniature, remote_code=allowed)["remote"]
    assert (refused.skip_reason or "").startswith("remote code")
    allowed.write_text(entry.format(hub.models["org/remote"].sha))
    trusted = specs(listing, miniature, remote_code=allowed)["remote"]
    assert trusted.skip_reason is None
    assert isinstance(trusted.build, ConfigBuild)
    assert (trusted.build.trust_remote_code, trusted.build.repo) == (True, "org/remote")
    allowed.write_text(entry.format("main"))
    with pytest.raises(ConfigError, match=r"allow\[0\]\.revision"):
        specs(listing, miniature, remote_code=allowed)


def test_passing_trouble_is_waited_out(
    pull_from: Callable[..., PullReport], hub: HubDouble, listing: Path
) -> None:
    hub.fail("^/api/models$", 503, times=2)
    hub.fail("/org/acorn/resolve/", 429, times=1, Retry_After="0")
    hub.fail("/org/twin/resolve/", 500, times=2)
    report = pull_from(top=8)
    assert (report.configs, report.partial) == (4, False)


def test_one_model_that_the_hub_fails_for_does_not_stop_the_rest(
    pull_from: Callable[..., PullReport], hub: HubDouble, listing: Path
) -> None:
    hub.fail("/org/acorn/resolve/", 502)
    report = pull_from(top=8)
    assert report.partial
    assert report.message == "7 of 8 models pulled, then: 127.0.0.1: responds 502 Bad Gateway"
    assert "acorn" not in names(listing)
    assert len([r for r in hub.requests if "/org/acorn/" in r]) == HASTY.attempts


@pytest.mark.parametrize(
    ("status", "headers", "says"),
    [
        (429, {"Retry_After": "3600"}, "rate limit reached, wait 3600 s"),
        (429, {"RateLimit": '"api";r=0;t=900'}, "rate limit reached, wait 900 s"),
        (503, {}, "responds 503 Service Unavailable"),
        (0, {}, "no response within 1 s"),
    ],
)
def test_an_outage_is_reported_and_what_there_is_is_kept(
    pull_from: Callable[..., PullReport],
    hub: HubDouble,
    listing: Path,
    miniature: Path,
    status: int,
    headers: dict[str, Any],
    says: str,
) -> None:
    pull_from(top=8)
    before = listing.read_text()
    hub.models["org/fresh"] = model("fresh", 999, ACORN | {"hidden_size": 9})
    hub.models["org/fresher"] = model("fresher", 998, ACORN | {"hidden_size": 10})
    hub.fail("/org/(deleted|diffuser|fresher|gated|malformed)/resolve/", status, **headers)
    limits = HASTY if status else HURRIED
    report = pull_from(top=8, workers=1 if status else 4, limits=limits)
    assert report.partial
    assert report.message is not None
    assert says in report.message
    assert "\n" not in report.message
    kept = read_pulled(listing)
    assert (kept.partial, kept.message) == (True, report.message)
    assert {m.repository for m in kept.model} >= {m.id for m in CATALOGUE} | {"org/fresh"}
    assert len(specs(listing, miniature)) == len(kept.model)
    # Nothing at all learnt: the list stays as it is.
    after = listing.read_text()
    hub.fail("^/api/models$", status, **headers)
    with pytest.raises(SourceError, match=r"127\.0\.0\.1"):
        pull_from(top=8, limits=limits)
    assert listing.read_text() == after != before


def test_pages_that_came_before_a_failure_count(
    pull_from: Callable[..., PullReport], hub: HubDouble, listing: Path
) -> None:
    served = hub.note

    def break_second_page(request: str, path: str) -> Any:
        if "cursor" in request:
            hub.fail("^/api/models$", 500, times=1)
        return served(request, path)

    hub.note = break_second_page  # type: ignore[method-assign]
    report = pull_from(top=8)
    assert report.message == (
        "3 of 8 models pulled, then: 127.0.0.1: responds 500 Internal Server Error"
    )
    assert names(listing) == ["acorn", "gated", "deleted"]


def test_nobody_listens(listing: Path, tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(SourceError, match=r"127\.0\.0\.1: cannot be reached") as caught:
            pull(endpoint=endpoint, output=listing, cache=tmp_path / "c", limits=HASTY)
    assert "\n" not in str(caught.value)
    assert not listing.exists()


def test_retries_are_reported_and_a_host_that_is_not_there_is_tried_once(
    listing: Path, tmp_path: Path
) -> None:
    told: list[str] = []
    with pytest.raises(SourceError, match="cannot be reached"):
        pull(
            output=listing,
            endpoint="http://127.0.0.1:9",
            cache=tmp_path,
            limits=RetryLimits(attempts=3, first_wait_seconds=0.001),
            notice=told.append,
        )
    assert [line.rpartition("; ")[2] for line in told] == ["attempt 2 of 3", "attempt 3 of 3"]


@pytest.mark.parametrize("fault", [dripping_headers, dripping_body])
def test_a_hub_that_sends_a_byte_now_and_then_is_given_up(
    fault: Fault, listing: Path, tmp_path: Path
) -> None:
    limits = RetryLimits(attempts=1, deadline_seconds=0.5)
    late = "no complete response within 0.5 s"
    with misbehaving(fault) as address, pytest.raises(SourceError, match=late):
        pull(output=listing, endpoint=f"http://{address}", cache=tmp_path, limits=limits)


def test_something_else_listens(hub: HubDouble, listing: Path, tmp_path: Path) -> None:
    hub.listing = lambda query: ([{"error": "no list"}], None)  # type: ignore[method-assign]
    with pytest.raises(SourceError, match="is not a Hub"):
        pull(endpoint=hub.endpoint, output=listing, cache=tmp_path / "c", limits=HASTY)


def test_an_interrupted_pull_keeps_what_it_has(
    pull_from: Callable[..., PullReport], hub: HubDouble, listing: Path
) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    report = pull_from(top=8, workers=1, progress=interrupt)
    assert report.partial
    assert report.message is not None
    assert report.message.endswith("models pulled, then: interrupted")
    assert "acorn" in names(listing)


def test_a_second_pull_fetches_only_what_is_new(
    pull_from: Callable[..., PullReport], hub: HubDouble, listing: Path
) -> None:
    pull_from(top=1)
    text = listing.read_text()
    listing.write_text(text.replace("weights = false", "weights = true"))
    hub.requests.clear()
    pull_from(top=1)
    assert [r for r in hub.requests if "/resolve/" in r] == []
    # What a person set is kept.
    assert read_pulled(listing).model[0].weights


def test_figures_by_architecture_are_written_beside_the_list(
    pull_from: Callable[..., PullReport], listing: Path
) -> None:
    report = pull_from(top=8)
    assert report.figures == str(listing.with_name("popularity.csv"))
    figures = read_popularity(Path(report.figures))
    assert (figures["acorn"].downloads, figures["acorn"].models) == (900 + 800 + 700 + 200, 4)
    # A selection says nothing about architectures at large.
    assert pull_from(top=8, family="acorn").figures is None
    assert pull_from(top=8, sort="likes").figures is None


def test_threads_share_one_client_and_leave_none_behind(
    pull_from: Callable[..., PullReport],
) -> None:
    before = threading.active_count()
    pull_from(top=8, workers=4)
    from huggingface_hub import get_session

    assert type(get_session()).__name__ == "Client"
    assert threading.active_count() <= before + 4  # the double's own keep-alive threads


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("endpoint = \n", "at line 1"),
        ("schema_version = 99\n", "schema_version 99 is newer"),
        ('endpoint = "e"\npulled_at = "t"\n[query]\ntop = "x"\n', "Expected `int`"),
        (
            'endpoint = "e"\npulled_at = "t"\n[query]\ntop = 1\n'
            + 2 * '[[model]]\nrepository = "a/b"\nproblem = "p"\n',
            "a/b is listed twice",
        ),
        (
            'endpoint = "e"\npulled_at = "t"\n[query]\ntop = 1\n[[model]]\nrepository = "a/b"\n'
            'config = "c"\n',
            "a/b has a config, but no revision",
        ),
    ],
)
def test_a_damaged_list_is_rejected(listing: Path, miniature: Path, text: str, says: str) -> None:
    listing.parent.mkdir()
    listing.write_text(text)
    with pytest.raises(ConfigError) as caught:
        HubSource(path=listing, transformers=miniature).models()
    assert says in str(caught.value)
    assert str(listing) in str(caught.value)


def test_no_list(listing: Path) -> None:
    with pytest.raises(SourceError, match="run `compilewatch pull`"):
        HubSource(path=listing).models()


@pytest.mark.parametrize(
    "endpoint", ["http://127.0.0.1:99999", "http://127.0.0.1:x", "ftp://host", "host", "http://"]
)
def test_an_address_that_is_none_is_rejected_at_once(tmp_path: Path, endpoint: str) -> None:
    with pytest.raises(UsageError, match="is not an address: write https://host"):
        pull(top=1, output=tmp_path / "hub.toml", endpoint=endpoint)
