"""Every kind of repository that the Hub has: what is built of it, or why nothing is."""

from pathlib import Path
from typing import Any

import pytest

from compilewatch import records
from compilewatch.config import inputs_folder
from compilewatch.data import MODELS, REPOSITORIES
from compilewatch.errors import ConfigError
from compilewatch.plan import plan
from compilewatch.records import ModelSpec, Quantization
from compilewatch.sources.hub import formats, repositories
from compilewatch.sources.transformers import Resolver, read_library, scan
from tests import factories
from tests.unit.sources.hub.conftest import NAME, Read


def test_of_all_files_and_tags_those_are_kept_that_say_what_the_repository_is() -> None:
    names = ["model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors"]
    names += ["README.md", "sample.png", "LICENSE", "config.json", "deep/down/model.onnx"]
    assert formats.kept_files(names) == ["config.json", names[0], "deep/down/model.onnx"]
    many = (f"{number}.gguf" for number in range(5000))
    assert len(formats.kept_files(many)) == formats.MAX_FILES
    tags = ["transformers", "mlx", "license:mit", "arxiv:1", "base_model:a/b", "region:us"]
    assert formats.kept_tags(tags) == ["transformers", "mlx"]


@pytest.mark.parametrize(
    ("library", "tags", "files", "expected"),
    [
        # What users of PyTorch load is there, whatever else is.
        ("transformers", ("tf", "jax"), ("tf_model.h5", "pytorch_model.bin"), None),
        ("transformers", (), ("training_args.bin", "tf_model.h5"), "TensorFlow"),
        ("transformers", ("ctranslate2",), ("model.bin",), "CTranslate2"),
        (None, (), ("model.bin", "vocabulary.txt"), "CTranslate2"),
        ("transformers.js", (), ("onnx/model.onnx",), "ONNX"),
        ("transformers", ("mlx",), ("model.safetensors",), "MLX"),
        (None, (), ("openvino_model.xml", "openvino_model.bin"), "OpenVINO"),
        (None, (), ("model.mlpackage/Data/weights/weight.bin",), "Core ML"),
        # The files are not known: the library decides, and tags only if none is PyTorch's.
        ("gguf", (), None, "GGUF"),
        (None, ("onnx",), None, "ONNX"),
        (None, ("onnx", "safetensors"), None, None),
        (None, (), None, None),
    ],
)
def test_the_format_that_pytorch_cannot_load(
    library: str | None, tags: tuple[str, ...], files: tuple[str, ...] | None, expected: str | None
) -> None:
    assert formats.foreign_format(library, tags, files) == expected


ACORN = {"model_type": "acorn", "architectures": ["AcornModel"], "hidden_size": 8}
OAK = {"model_type": "oak", "architectures": ["OakModel"], "auto_map": {"AutoModel": "m.Oak"}}
CONFIG = {"config.json": ACORN, "model.safetensors": None}
BASE = {"config.json": ACORN}
SIZES = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2, "vocab_size": 9}
UNET = {"_class_name": "UNet2DConditionModel"}
LORA = {
    "adapter_config.json": {"peft_type": "LORA", "base_model_name_or_path": "org/acorn"},
    "adapter_model.safetensors": None,
}
LLAMA = {"dim": 64, "n_layers": 2, "n_heads": 4, "norm_eps": 1e-5, "vocab_size": -1}
ORIGINAL = {"params.json": LLAMA, "consolidated.00.pth": None}
GPTQ = {"quantization_config": {"quant_method": "gptq"}}
PIPELINE = {
    "model_index.json": {
        "_class_name": "StableDiffusionPipeline",
        "unet": ["diffusers", "UNet2DConditionModel"],
        "text_encoder": ["transformers", "AcornModel"],
        "scheduler": ["diffusers", "PNDMScheduler"],
        "tokenizer": ["transformers", "AcornTokenizer"],
        "image_encoder": [None, None],
        "safety_checker": ["stable_diffusion", "StableDiffusionSafetyChecker"],
        "requires_safety_checker": True,
    },
    "unet/config.json": UNET,
    "text_encoder/config.json": ACORN | {"architectures": ["Other"]},
}
OWN_PIPELINE = {"model_index.json": {"unet": ["my_unet", "Mine"]}, "my_unet.py": None}

GATED = "gated: accept its terms on the Hub and set HF_TOKEN"
TRANSFORMERS = "class AcornModel, transformers"
WHOLE = "class AcornModel, whole"
WITH_TIMM = "class AcornModel with timm, whole"
WITH_ADAPTER = "class AcornModel with the adapter adapter_config.json with peft, whole"
UNREVIEWED = "remote code: its repository and revision are not in remote_code.toml"
UNAVAILABLE = "PEFT adapter: the configuration of its base model org/acorn is not available"
COMPONENTS = (
    "#safety_checker component safety_checker: StableDiffusionSafetyChecker belongs to the "
    "pipeline, not to the models of diffusers; #text_encoder class AcornModel, component; "
    "#unet diffusers UNet2DConditionModel, component"
)
OF_BASE = COMPONENTS.replace(", component", ", base_component")
UNKNOWN_FORM = "original weights (consolidated.00.pth) without a configuration of a known form"
LORA_ALONE = "a LoRA for diffusers, without the configuration of a model"
BUILT = (
    "only models of Transformers, timm, diffusers, sentence-transformers and open_clip are built"
)


def config(**fields: Any) -> dict[str, Any]:
    return {**CONFIG, "config.json": ACORN | fields}


def chain(*own: str) -> dict[str, Any]:
    kinds = {"": "Transformer", "1_Pooling": "Pooling"}
    modules = [{"path": p, "type": f"sentence_transformers.models.{k}"} for p, k in kinds.items()]
    modules += [{"path": name, "type": name} for name in own]
    pooling = {"1_Pooling/config.json": {"word_embedding_dimension": 8}}
    return {"modules.json": modules, **CONFIG, **pooling}


def kind(files: dict[str, Any], expected: str, library: str | None = None, **more: Any) -> Any:
    """Files and what the list says of them, and `said` of what is built."""
    return pytest.param(files, {"library": library, **more}, expected, id=expected[:50])


KINDS = [
    kind(CONFIG, WHOLE, "transformers"),
    kind({"config.json": {"architectures": ["AcornModel"]}}, WHOLE),
    kind(config(use_timm_backbone=True), WITH_TIMM),
    kind(config(vision_config={"model_type": "timm_wrapper"}), WITH_TIMM),
    kind(chain(), "sentence-transformers org/model, whole", "sentence-transformers"),
    kind(chain("own.Module"), TRANSFORMERS, "sentence-transformers"),
    kind({"config.json": {"architecture": "resnet50"}}, "timm resnet50, whole", "timm"),
    kind(config(architecture="resnet50"), WHOLE, "transformers"),
    kind(PIPELINE, COMPONENTS, "diffusers"),
    kind(OWN_PIPELINE, "#unet remote code: component unet is a class of the repository"),
    kind({"pytorch_lora_weights.safetensors": None}, OF_BASE, "diffusers", base=PIPELINE),
    kind({"config.json": UNET}, "diffusers UNet2DConditionModel, whole"),
    kind({"lora.safetensors": None}, LORA_ALONE, "diffusers", tags=["lora"]),
    kind(CONFIG | {"open_clip_config.json": {}}, "open_clip org/model, whole", "open_clip"),
    kind(LORA, WITH_ADAPTER, "peft", base=BASE),
    kind(LORA, UNAVAILABLE, "peft"),
    kind(
        LORA,
        "PEFT adapter of org/acorn: transformers 9.9.9 has no model type oak",
        "peft",
        base={"config.json": {"model_type": "oak"}},
    ),
    kind(config(**GPTQ), f"{WHOLE}, gptq"),
    kind(CONFIG | {"quantize_config.json": {"bits": 4}}, f"{WHOLE}, gptq"),
    kind({}, "no model: the repository has no files but its description"),
    kind(
        dict.fromkeys(("tokenizer.json", "vocab.txt")),
        "no model: the repository has only a tokenizer",
    ),
    kind({"train.parquet": None}, "no model: the repository has only data files"),
    kind(
        {"yolov8n.pt": None},
        "PyTorch weights (yolov8n.pt) without a configuration that names their class",
    ),
    kind(
        {"app.py": None},
        "no model: the repository has neither weights nor a configuration of a known form",
    ),
    kind(BASE | {"m-Q4.gguf": None}, "not PyTorch: it has only GGUF weights", "transformers"),
    kind({"pytorch_model.bin": None}, f"a model of spaCy: {BUILT}", "spacy"),
    kind(
        {"hyperparams.yaml": None, "embedding_model.ckpt": None}, f"a model of SpeechBrain: {BUILT}"
    ),
    kind(CONFIG, TRANSFORMERS, "setfit"),
    kind(ORIGINAL, "transformers 9.9.9 has no model type llama"),
    kind({"params.json": {"d_model": 8}, "consolidated.00.pth": None}, UNKNOWN_FORM),
    kind(CONFIG, GATED, problem=GATED, gated=True),
    kind(CONFIG, WHOLE, gated=True),
    kind({"config.json": OAK}, UNREVIEWED, "transformers"),
    kind({"config.json": OAK}, "class OakModel, whole", trusted=True),
    kind({"config.json": SIZES}, "its config.json names no model_type"),
    kind(
        {"config.json": SIZES},
        "org/bio-acorn-base class AcornForCausalLM, whole",
        name="org/bio-acorn-base",
    ),
    kind(
        {"config.json": "[1]"},
        "invalid configuration: config.json: a configuration is a JSON object",
    ),
]


def said(spec: ModelSpec) -> str:
    """`#component LIBRARY NAME, part, quantisation`, or the reason to skip it."""
    parts = [spec.name.removeprefix(NAME)] if spec.name != NAME else []
    if spec.skip_reason is not None:
        return " ".join([*parts, spec.skip_reason])
    build: Any = spec.build
    if isinstance(build, records.ConfigBuild):
        parts += ["class", build.class_name or "?"]
        if build.adapter_file is not None:
            parts += ["with the adapter", Path(build.adapter_file).name]
        parts += ["with", *build.packages] if build.packages else []
    else:
        parts += [build.library, build.name]
    about = [str(spec.part), *([str(spec.quantization)] if spec.quantization else [])]
    return ", ".join([" ".join(parts), *about])


@pytest.mark.parametrize(("files", "more", "expected"), KINDS)
def test_what_is_built_of_a_kind_of_repository_or_why_nothing_is(
    files: dict[str, Any], more: dict[str, Any], expected: str, read: Read
) -> None:
    specs = read(files, **more)
    assert "; ".join(map(said, specs)) == expected
    assert {(spec.repository, spec.downloads) for spec in specs} == {(more.get("name", NAME), 7)}
    # The quantisation of a checkpoint is not in a class that is built without weights.
    assert [spec.is_dequantized for spec in specs] == [
        spec.quantization is not None for spec in specs
    ]
    # A reason survives the plan, whatever is known of the class.
    skipped = [spec for spec in specs if spec.skip_reason is not None]
    if skipped:
        results = plan(
            skipped, [records.Target()], factories.settings(), [factories.environment()]
        ).skipped
        assert {r.status for r in results} == {records.Status.SKIPPED}
        assert {r.detail for r in results} == {spec.skip_reason for spec in skipped}


def test_original_files_are_built_as_the_class_of_transformers(
    read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repositories, "converted", lambda params: {**ACORN, **params})
    assert list(map(said, read(ORIGINAL))) == ["class AcornModel, original"]


def test_builds_of_libraries_are_known_by_the_content_of_their_configuration(read: Read) -> None:
    digests = []
    for size in (8, 8, 16):
        build: Any = read({**chain(), "1_Pooling/config.json": {"dimension": size}})[0].build
        assert Path(build.configuration, "modules.json").is_file()
        digests.append(build.configuration_sha256)
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({"quant_method": "awq", "bits": 4}, Quantization.AWQ),
        ({"quant_method": "bitsandbytes", "load_in_4bit": 1}, Quantization.BITSANDBYTES_4BIT),
        ({"load_in_8bit": True}, Quantization.BITSANDBYTES_8BIT),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, Quantization.FP8),
        ({"quant_method": "compressed-tensors"}, Quantization.COMPRESSED_TENSORS),
        ({"quant_method": "hqq"}, Quantization.OTHER),
        (None, None),
    ],
)
def test_the_quantisation_that_a_configuration_says(
    stated: dict[str, Any] | None, expected: Quantization | None
) -> None:
    assert repositories.quantization({"quantization_config": stated}) == expected
    assert repositories.quantization({}, {"zero_point": True}) is Quantization.AWQ


OF_7B: dict[str, Any] = {"dim": 4096, "n_heads": 32, "n_layers": 32, "norm_eps": 1e-05}
LLAMA_3: dict[str, Any] = OF_7B | {"n_kv_heads": 8, "vocab_size": 128256, "multiple_of": 1024}
LLAMA_3 |= {"ffn_dim_multiplier": 1.3, "rope_theta": 500000.0}
MISTRAL: dict[str, Any] = OF_7B | {"n_kv_heads": 8, "vocab_size": 32000}
MISTRAL |= {"head_dim": 128, "hidden_dim": 14336}
MIXTRAL = {**MISTRAL, "moe": {"num_experts_per_tok": 2, "num_experts": 8}}


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (OF_7B | {"multiple_of": 256, "vocab_size": -1}, ("llama", 11008, 32, 32000)),
        (LLAMA_3, ("llama", 14336, 8, 128256)),
        (MISTRAL, ("mistral", 14336, 8, 32000)),
        (MIXTRAL, ("mixtral", 14336, 8, 32000)),
        # Other forms are not guessed.
        ({}, None),
        ({"dim": "wide", "n_layers": 2, "n_heads": 2, "norm_eps": 1e-5}, None),
        ({**MISTRAL, "vision_encoder": {}}, None),
        ({**MISTRAL, "vocab_size": "large"}, None),
    ],
)
def test_sizes_are_those_of_the_published_configurations(
    params: dict[str, Any], expected: tuple[Any, ...] | None
) -> None:
    sizes = repositories.converted(params)
    keys = ("model_type", "intermediate_size", "num_key_value_heads", "vocab_size")
    assert (sizes and tuple(sizes[key] for key in keys)) == expected
    assert sizes is None or (sizes["hidden_size"], sizes["num_hidden_layers"]) == (4096, 32)


def test_a_configuration_of_mamba_ssm_has_the_sizes_of_the_class() -> None:
    mamba = {"d_model": 768, "n_layer": 24, "vocab_size": 50277, "ssm_cfg": {}}
    assert repositories.converted_mamba(mamba) == {
        "model_type": "mamba",
        "architectures": ["MambaForCausalLM"],
        "hidden_size": 768,
        "num_hidden_layers": 24,
        "vocab_size": 50280,  # The embeddings have a multiple of eight rows.
    }
    for other in ({"ssm_cfg": {"layer": "Mamba2"}}, {"model_type": "mamba"}, {"d_model": "768"}):
        assert repositories.converted_mamba(mamba | other) is None


HEAD = 'reason = "Its documentation says so."\ndate = 2026-11-24\n'
WEIGHTS = {"model.pt": None}


def line(names: str, *models: str, more: str = "") -> str:
    """A line for repositories with these names; a model is its library, file and component."""
    text = f'[[repository]]\nnames = ["{names}"]\n{more}\n{HEAD}'
    for model in models:
        library, configuration, *component = model.split()
        text += f'[[repository.model]]\nlibrary = "{library}"\nconfiguration = "{configuration}"\n'
        text += f'component = "{component[0]}"\n' if component else ""
    return text


TAGGER = line("org/*-tagger", "open_clip tagger")
LINES = (
    TAGGER,
    line("org/pipeline", "open_clip tagger tagger", "transformers acorn embeddings"),
    line("org/ported", "diffusers denoiser", more='part = "port"'),
    line("org/words", more='skip = "no model: lists of words"'),
)


@pytest.fixture(autouse=True)
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's inputs with reviewed lines and the configurations that they name."""
    folder = tmp_path / "inputs"
    for name, text in {
        "open_clip/tagger": '{"embed_dim": 8}',
        "transformers/acorn": '{"model_type": "acorn", "architectures": ["AcornModel"]}',
        "diffusers/denoiser": '{"_class_name": "Denoiser"}',
    }.items():
        path = folder / "models" / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "repositories.toml").write_text("".join(LINES))
    monkeypatch.setenv("COMPILEWATCH_INPUTS", str(folder))
    return folder


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("org/any-tagger", "org/any-tagger open_clip tagger, whole"),
        (
            "org/pipeline",
            "org/pipeline#embeddings class AcornModel, component; "
            "org/pipeline#tagger open_clip tagger, component",
        ),
        ("org/ported", "org/ported diffusers Denoiser, port"),
        ("org/words", "org/words no model: lists of words"),
    ],
)
def test_a_repository_with_a_line_is_what_it_names(read: Read, name: str, expected: str) -> None:
    specs = read(WEIGHTS, name=name)
    assert "; ".join(map(said, specs)) == expected
    assert {spec.repository for spec in specs} == {name}


@pytest.mark.parametrize(
    ("files", "more"),
    [
        # Its own files say it.
        ({"config.json": {"model_type": "acorn"}, **WEIGHTS}, {"name": "org/a-tagger"}),
        # PyTorch does not load it, and it is not there.
        ({"model.gguf": None}, {"name": "org/a-tagger"}),
        ({}, {"name": "org/a-tagger", "problem": "gated"}),
        (WEIGHTS, {"name": "org/other"}),
    ],
)
def test_a_line_applies_only_where_nothing_else_resolves_a_repository(
    files: dict[str, Any], more: dict[str, Any], read: Read
) -> None:
    assert not any(isinstance(spec.build, records.LibraryBuild) for spec in read(files, **more))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (line("a"), "write either"),
        (line("a", "open_clip tagger", more='skip = "x"'), "write either"),
        (line("a", "oak b"), "no library 'oak'; known: transformers, timm"),
        (line("a", "open_clip tagger", "open_clip tagger"), "needs a component"),
        ('[[repository]]\nnames = ["a"]\nskip = "x"', "missing required field `reason`"),
    ],
)
def test_a_line_that_says_too_little_or_too_much_is_rejected(
    text: str, expected: str, inputs: Path
) -> None:
    path = inputs / "repositories.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=expected):
        repositories.read_reviewed([path])


def test_a_configuration_that_is_not_there_is_named(inputs: Path, miniature: Path) -> None:
    (inputs / "models" / "open_clip" / "tagger.json").unlink()
    lines = repositories.read_reviewed([inputs / "repositories.toml", inputs / "none.toml"])
    with pytest.raises(ConfigError, match=r"tagger\.json: cannot be read"):
        repositories.reviewed_models(
            lines, factories.spec("org/a-tagger"), Resolver(scan(miniature))
        )


@pytest.mark.timeout(400)  # it scans all of Transformers, on a machine that may be busy
def test_all_shipped_lines_resolve_and_all_configurations_are_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("COMPILEWATCH_INPUTS")
    assert not inputs_folder().joinpath(REPOSITORIES.name).exists()
    shipped = repositories.read_reviewed([REPOSITORIES])
    resolver = Resolver(read_library())
    used: set[Path] = set()
    for reviewed, _ in shipped:
        spec = factories.spec(reviewed.names[0].replace("*", "any"))
        for model in repositories.reviewed_models(shipped, spec, resolver):
            if reviewed.skip is None:
                assert model.skip_reason is None, model.name
                build: Any = model.build
                file = Path(getattr(build, "configuration", None) or build.config_file)
                used.add(file.relative_to(MODELS.resolve()))
    assert used == {path.relative_to(MODELS) for path in MODELS.rglob("*.json")}
