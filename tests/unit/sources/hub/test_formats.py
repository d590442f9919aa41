from __future__ import annotations

import pytest

from compilewatch.sources.hub import formats


def test_of_all_files_those_are_kept_that_say_what_the_repository_is() -> None:
    names = ["model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors"]
    names += ["README.md", "sample.png", "LICENSE", "config.json", "deep/down/model.onnx"]
    assert formats.kept_files(names) == [
        "config.json",
        "model-00001-of-00003.safetensors",
        "deep/down/model.onnx",
    ]
    many = (f"{number}.gguf" for number in range(5000))
    assert len(formats.kept_files(many)) == formats.MAX_FILES


def test_tags_about_data_papers_and_places_are_not_kept() -> None:
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
