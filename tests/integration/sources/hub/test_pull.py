import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import get_session

from compilewatch.errors import ConfigError, SourceError, UsageError
from compilewatch.records import ModelSpec, Part
from compilewatch.sources.hub import pull as pulling
from compilewatch.sources.hub.pulled import PulledQuery, PullReport, read_pulled
from compilewatch.sources.hub.repositories import HubSource
from compilewatch.sources.popularity import read_popularity
from scripts.popularity import popularity_csv
from tests import factories
from tests.integration.sources.hub_double import HubDouble, HubModel, served

ACORN = {"model_type": "acorn", "architectures": ["AcornModel"], "hidden_size": 8}
REMOTE = {"model_type": "oak", "architectures": ["OakModel"], "auto_map": {"AutoModel": "m.Oak"}}
Patch = pytest.MonkeyPatch
LISTING = r"^/api/models\?"


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
def own_cache(tmp_path: Path, monkeypatch: Patch) -> None:
    """Of its own are also the limits: three attempts within a second."""
    monkeypatch.setattr(pulling, "ATTEMPTS", 3)
    monkeypatch.setattr(pulling, "FIRST_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(pulling, "LONGEST_WAIT_SECONDS", 0.05)
    monkeypatch.setenv("COMPILEWATCH_CACHE", str(tmp_path / "cache"))
    for name in ("HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)


class Pulls:
    """A hub, the list that pulls from it write, and what is read from the list."""

    def __init__(self, hub: HubDouble, folder: Path, transformers: Path) -> None:
        self.hub, self.listing = hub, folder / "pulled" / "models.toml"
        self.cache, self.transformers = folder / "hub-cache", transformers

    def __call__(self, **arguments: Any) -> PullReport:
        names = PulledQuery.__struct_fields__
        query = {name: arguments.pop(name) for name in names if name in arguments}
        settings: dict[str, Any] = {"endpoint": self.hub.endpoint, "token": False}
        settings |= {"cache": self.cache}
        return pulling.pull(
            PulledQuery(**{"top": 50} | query), self.listing, **(settings | arguments)
        )

    def specs(self) -> dict[str, ModelSpec]:
        places = factories.places(self.transformers, pulled_dir=str(self.listing.parent))
        models = HubSource(places).models()
        return {spec.name.removeprefix("org/"): spec for spec in models}

    def names(self) -> list[str]:
        models = read_pulled(self.listing).model
        return [listed.repository.removeprefix("org/") for listed in models]

    def fetched(self) -> list[str]:
        """The files of all repositories that were asked for."""
        paths = [request.partition("/resolve/")[2] for request in self.hub.requests]
        return [path.partition("/")[2] for path in paths if path]

    def add(self, *models: HubModel) -> None:
        self.hub.models |= {model.id: model for model in models}


@pytest.fixture
def pulls(tmp_path: Path, miniature: Path) -> Iterator[Pulls]:
    with served(HubDouble(list(CATALOGUE), page_size=3)) as hub:
        yield Pulls(hub, tmp_path, miniature)


def build(spec: ModelSpec) -> Any:
    return spec.build


def test_models_are_pinned_and_sorted_out(pulls: Pulls) -> None:
    report = pulls(top=8)
    assert (report.models, report.configs, report.partial) == (8, 4, False)
    at = "line 1 column 16 (char 15)"
    assert report.problems == {
        "gated: accept its terms on the Hub and set HF_TOKEN": 1,
        "private or deleted": 1,
        pulling.NO_CONFIGURATION: 1,
        f"malformed configuration: config.json: not JSON: Expecting value: {at}": 1,
    }
    assert {*pulls.fetched()} == {"config.json"}
    pulls.hub.requests.clear()
    specs = pulls.specs()
    assert pulls.hub.requests == []
    assert list(specs) == [m.id.removeprefix("org/") for m in CATALOGUE]
    acorn, twin = specs["acorn"], specs["twin"]
    assert acorn.skip_reason is None
    assert acorn.revision == pulls.hub.models["org/acorn"].sha
    assert (acorn.downloads, acorn.license, acorn.family) == (900, "mit", "acorn")
    assert (acorn.architecture, acorn.task) == ("AcornModel", "text")
    assert specs["gated"].gated
    # One configuration under two names is one question.
    assert build(acorn).config_sha256 == build(twin).config_sha256
    config = Path(build(acorn).config_file)
    assert config.is_relative_to(pulls.listing.parent)
    assert config.read_text() == pulls.hub.models["org/acorn"].text
    config.unlink()
    assert "pull again" in (pulls.specs()["acorn"].skip_reason or "")


INDEX = {
    "_class_name": "StableDiffusionPipeline",
    "unet": ["diffusers", "UNet2DConditionModel"],
    "text_encoder": ["transformers", "AcornModel"],
    "scheduler": ["diffusers", "PNDMScheduler"],
    "../../escape": ["diffusers", "UNet2DConditionModel"],
}
PIPELINE = model(
    "pipeline",
    50,
    library="diffusers",
    files={
        "model_index.json": json.dumps(INDEX),
        "unet/config.json": json.dumps({"_class_name": "UNet2DConditionModel"}),
        "text_encoder/config.json": json.dumps(ACORN),
        "../../escape/config.json": "{}",
        **dict.fromkeys(("unet/model.safetensors", "scheduler/scheduler_config.json", "model.py")),
    },
)
MODULES = {"": "Transformer", "1_Pooling": "Pooling"}
CHAIN = model(
    "chain",
    40,
    ACORN,
    library="sentence-transformers",
    files={
        "modules.json": json.dumps(
            [{"path": p, "type": f"sentence_transformers.models.{m}"} for p, m in MODULES.items()]
        ),
        "1_Pooling/config.json": json.dumps({"word_embedding_dimension": 8}),
        "sentence_bert_config.json": json.dumps({"max_seq_length": 16}),
        "model.safetensors": None,
    },
)


def adapter(name: str, base: str) -> HubModel:
    config = json.dumps({"peft_type": "LORA", "base_model_name_or_path": base})
    files = {"adapter_config.json": config, "adapter_model.safetensors": None}
    return model(name, 30, library="peft", files=files)


def test_all_configuration_files_of_a_repository_are_fetched_and_nothing_else(pulls: Pulls) -> None:
    pulls.add(
        *(PIPELINE, CHAIN, adapter("adapter", "org/acorn"), adapter("closed", "org/gated")),
        model("large", 20, {"model_type": "acorn", "x": "x" * 2**21}),
        model("weights", 10, files={"model.gguf": None, "readme.md": None}),
    )
    assert pulls(top=99).models == len(pulls.hub.models)
    assert {*pulls.fetched()} == {
        *("config.json", "model_index.json", "unet/config.json", "text_encoder/config.json"),
        *("modules.json", "1_Pooling/config.json", "sentence_bert_config.json"),
        "adapter_config.json",
    }
    assert not [r for r in pulls.hub.requests if r.startswith("GET") and "large" in r]
    specs, folder = pulls.specs(), pulls.listing.parent
    assert Path(build(specs["pipeline#unet"]).configuration).is_relative_to(folder)
    assert (Path(build(specs["chain"]).configuration) / "1_Pooling" / "config.json").is_file()
    assert Path(build(specs["adapter"]).adapter_file).is_relative_to(folder)
    closed = "PEFT adapter: its base model org/gated: gated: accept its terms on the Hub and set"
    assert (specs["closed"].skip_reason or "").startswith(closed)
    assert "are too many for a configuration" in (specs["large"].skip_reason or "")


def test_the_base_pipeline_of_an_adapter_of_diffusers_is_fetched_as_far_as_the_token_reaches(
    pulls: Pulls,
) -> None:
    more: dict[str, Any] = {"library": "diffusers", "files": {"lora.safetensors": None}}
    pulls.add(PIPELINE)
    for name, base in {"lora": "org/pipeline", "closed": "org/gated", "odd": "org/acorn"}.items():
        tags = (f"base_model:{base}", f"base_model:adapter:{base}")
        pulls.add(model(name, 30, tags=tags, **more))
    pulls.add(model("tuned", 30, tags=("base_model:finetune:org/pipeline",), **more))
    pulls(top=99)
    specs = pulls.specs()
    unet = specs["lora#unet"]
    assert (unet.part, unet.skip_reason) == (Part.BASE_COMPONENT, None)
    assert "org--lora" in build(unet).configuration
    closed = "adapter of diffusers: its base pipeline org/gated: gated: accept its terms"
    assert (specs["closed"].skip_reason or "").startswith(closed)
    # The base of one is no pipeline; the other was derived from a model, and is no adapter.
    for name in ("odd", "tuned"):
        assert "without the configuration of a model" in (specs[name].skip_reason or "")


def test_orders_and_filters_are_the_hubs(pulls: Pulls) -> None:
    for arguments, names in (
        ({"top": 2, "sort": "likes"}, ["remote", "acorn"]),
        ({"top": 1, "sort": "trending"}, ["twin"]),
        ({"family": "acorn", "library": "transformers"}, ["acorn", "gated", "deleted", "twin"]),
        ({"task": "text-generation"}, ["acorn"]),
        ({"library": "diffusers"}, ["diffuser"]),
    ):
        pulls(**({"top": 9} | arguments))
        assert pulls.names() == names


def test_endpoint_and_token_of_the_environment(pulls: Pulls) -> None:
    script = (
        "from pathlib import Path\n"
        "from compilewatch.sources.hub.pull import pull\n"
        "from compilewatch.sources.hub.pulled import PulledQuery\n"
        f"print(pull(PulledQuery(top=2), Path({str(pulls.listing)!r})).configs)"
    )
    home = str(pulls.listing.parent / "home")
    variables = {"HF_ENDPOINT": pulls.hub.endpoint, "HF_TOKEN": "hf_good", "HF_HOME": home}
    done = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | variables, capture_output=True, text=True
    )
    assert done.stdout == "2\n", done.stderr
    assert read_pulled(pulls.listing).endpoint == pulls.hub.endpoint


def test_remote_code_is_allowed_at_a_commit_only(
    pulls: Pulls, tmp_path: Path, monkeypatch: Patch
) -> None:
    pulls(top=8)
    monkeypatch.setenv("COMPILEWATCH_INPUTS", str(tmp_path))
    allowed = tmp_path / "remote_code.toml"
    line = 'repository = "org/remote"\nrevision = "main"\nreason = "r"\ndate = 2026-11-24\n'
    allowed.write_text(f"[[allow]]\n{line}")
    with pytest.raises(ConfigError, match=r"allow\[0\]\.revision"):
        pulls.specs()


def test_passing_trouble_is_waited_out_and_one_model_does_not_stop_the_rest(pulls: Pulls) -> None:
    pulls.hub.fail(LISTING, 503, times=2)
    pulls.hub.fail("/org/twin/resolve/", 429, times=1, Retry_After="0")
    pulls.hub.fail("/org/unknown/resolve/", 500, times=2)
    pulls.hub.fail("/org/acorn/resolve/", 502)
    report = pulls(top=8)
    assert (report.configs, report.partial) == (3, True)
    assert report.message == "7 of 8 models pulled, then: 127.0.0.1: responds 502 Bad Gateway"
    assert "acorn" not in pulls.names()
    assert len([r for r in pulls.hub.requests if "/org/acorn/" in r]) == pulling.ATTEMPTS


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
    pulls: Pulls, status: int, headers: dict[str, Any], says: str, monkeypatch: Patch
) -> None:
    pulls(top=8)
    before = pulls.listing.read_text()
    pulls.add(model("fresh", 999, ACORN | {"x": 1}), model("fresher", 998, ACORN | {"x": 2}))
    pulls.hub.fail("/org/(deleted|diffuser|fresher|gated|malformed)/resolve/", status, **headers)
    if not status:
        monkeypatch.setattr(pulling, "ATTEMPTS", 1)
        monkeypatch.setattr(pulling, "TIMEOUT_SECONDS", 1.0)
    report = pulls(top=8, workers=1 if status else 4)
    assert report.partial
    assert report.message is not None
    assert says in report.message
    assert "\n" not in report.message
    kept = read_pulled(pulls.listing)
    assert (kept.partial, kept.message) == (True, report.message)
    assert {m.repository for m in kept.model} >= {m.id for m in CATALOGUE} | {"org/fresh"}
    assert len(pulls.specs()) == len(kept.model)
    # Nothing at all learnt: the list stays as it is.
    after = pulls.listing.read_text()
    pulls.hub.fail(LISTING, status, **headers)
    with pytest.raises(SourceError, match=r"127\.0\.0\.1"):
        pulls(top=8)
    assert pulls.listing.read_text() == after != before


def test_an_interrupted_pull_keeps_what_it_has(pulls: Pulls) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    report = pulls(top=8, workers=1, progress=interrupt)
    assert report.partial
    assert (report.message or "").endswith("models pulled, then: interrupted")
    assert "acorn" in pulls.names()
    # Pages of the list that came before a failure count.
    pulls.listing.unlink()
    pulls.hub.fail("cursor=", 500)
    failure = "127.0.0.1: responds 500 Internal Server Error"
    assert pulls(top=8).message == f"3 of 8 models pulled, then: {failure}"
    assert pulls.names() == ["acorn", "gated", "deleted"]


def test_retries_are_reported_and_a_host_that_is_not_there_is_tried_once(pulls: Pulls) -> None:
    told: list[str] = []
    with pytest.raises(SourceError, match=r"127\.0\.0\.1: cannot be reached") as caught:
        pulls(endpoint="http://127.0.0.1:9", notice=told.append)
    assert "\n" not in str(caught.value)
    assert not pulls.listing.exists()
    assert [line.rpartition("; ")[2] for line in told] == ["attempt 2 of 3", "attempt 3 of 3"]


def test_an_address_that_is_no_hub_is_rejected(pulls: Pulls, monkeypatch: Patch) -> None:
    for address in ("http://127.0.0.1:99999", "http://127.0.0.1:x", "ftp://h", "h", "http://"):
        with pytest.raises(UsageError, match="is not an address: write https://host"):
            pulls(endpoint=address)
    monkeypatch.setattr(pulls.hub, "answer", lambda *_: (200, '[{"error": "no list"}]', {}))
    with pytest.raises(SourceError, match="is not a Hub"):
        pulls()


def test_a_second_pull_fetches_only_what_is_new_and_keeps_what_a_person_set(pulls: Pulls) -> None:
    before = threading.active_count()
    pulls(top=8, workers=4)
    figures = pulls.listing.with_name("popularity.csv")
    figures.write_text(popularity_csv(pulls.listing))
    assert read_popularity(figures)["acorn"] == 900 + 800 + 700 + 200
    # Threads share one client and leave none behind but the double's own keep-alive threads.
    assert type(get_session()).__name__ == "Client"
    assert threading.active_count() <= before + 4
    text = pulls.listing.read_text()
    pulls.listing.write_text(text.replace("weights = false", "weights = true"))
    pulls.hub.requests.clear()
    pulls(top=1, family="acorn")
    assert pulls.fetched() == []
    assert read_pulled(pulls.listing).model[0].weights


GOOD = 'endpoint = "e"\npulled_at = "t"\n[query]\ntop = 1\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("schema_version = 99\n", "schema_version 99 is newer"),
        (GOOD.replace("1", '"x"'), "Expected `int`"),
        (GOOD + 2 * '[[model]]\nrepository = "a/b"\nproblem = "p"\n', "a/b is listed twice"),
        (GOOD + '[[model]]\nrepository = "a/b"\nconfig = "c"', "a/b has a config, but no revision"),
    ],
)
def test_a_damaged_list_is_rejected(tmp_path: Path, miniature: Path, text: str, says: str) -> None:
    path = tmp_path / "models.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        HubSource(factories.places(miniature, pulled_dir=str(tmp_path))).models()
    assert says in str(caught.value)
    assert str(path) in str(caught.value)
