"""What the names of files, libraries and tags say of a repository."""

import re

import pytest

from compilewatch.sources.hub import formats


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
        ("gguf", (), ("model.gguf", "model.safetensors"), None),
        ("transformers", (), ("training_args.bin", "tf_model.h5"), "TensorFlow"),
        ("transformers", ("ctranslate2",), ("model.bin",), "CTranslate2"),
        (None, (), ("model.bin", "vocabulary.txt"), "CTranslate2"),
        ("transformers.js", (), ("onnx/model.onnx",), "ONNX"),
        ("keras", (), ("model.keras",), "Keras"),
        (None, (), ("model.tflite",), "TensorFlow Lite"),
        (None, (), ("flax_model.msgpack",), "Flax"),
        ("transformers", ("mlx",), ("model.safetensors",), "MLX"),
        (None, (), ("openvino_model.xml", "openvino_model.bin"), "OpenVINO"),
        (None, (), ("model.mlpackage/Data/weights/weight.bin",), "Core ML"),
        # The files are not known: the library decides, and tags only if none is PyTorch's.
        ("gguf", (), None, "GGUF"),
        (None, ("onnx",), None, "ONNX"),
        (None, ("onnx", "safetensors"), None, None),
        (None, (), None, None),
        (None, (), (), None),
    ],
)
def test_the_format_that_pytorch_cannot_load(
    library: str | None, tags: tuple[str, ...], files: tuple[str, ...] | None, expected: str | None
) -> None:
    assert formats.foreign_format(library, tags, files) == expected


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ([], "the repository has no files but its description"),
        (["tokenizer.json", "tokenizer_config.json", "vocab.txt"], "has only a tokenizer"),
        (["train.parquet", "labels.csv"], "has only data files"),
        (["yolov8n.pt"], r"weights \(yolov8n.pt\) without a configuration that names their class"),
        (["app.py"], "has neither weights nor a configuration of a known form"),
        (None, "pull again"),
    ],
)
def test_why_a_repository_has_no_model(files: list[str] | None, reason: str) -> None:
    assert re.search(reason, formats.why_no_model(files))
