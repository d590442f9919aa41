"""A small package for each library, in the layout of the real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from compilewatch.sources.libraries import LIBRARIES

FILES: dict[str, dict[str, str]] = {
    "timm": {
        "models/_registry.py": "def register_model(f): return f\n",
        "models/oak.py": """
default_cfgs = generate_default_cfgs({
    "oak_small.in1k": _cfg(hf_hub_id="timm/", input_size=(3, 64, 64)),
    "oak_untrained": _cfg(),
})

@register_model
def oak_untrained(pretrained=False, **kwargs): ...

@register_model
def oak_small(pretrained=False, **kwargs): ...

@register_model
def oak_large(pretrained=False, **kwargs): ...

def not_registered(): ...
""",
        "models/elm.py": "@register_model\ndef elm(pretrained=False): ...\n",
    },
    "torchvision": {
        "models/oak.py": """
@register_model()
@handle_legacy_interface(weights=("pretrained", None))
def oak18(*, weights=None): ...

@register_model(name="quantised_name")
def other(*, weights=None): ...
""",
        "models/_utils.py": "@register_model()\ndef hidden(): ...\n",
        "models/detection/finder.py": "@register_model()\ndef finder_oak(): ...\n",
        "models/quantization/oak.py": "@register_model()\ndef quantized_oak18(): ...\n",
    },
    "diffusers": {
        "__init__.py": """
_import_structure = {"models": ["Denoiser", "LargeDenoiser", "Weights", "Codec"]}
_import_structure["pipelines"] = ["PaintPipeline"]
""",
        "models/unets/denoiser.py": """
class Denoiser(ModelMixin, ConfigMixin):
    def forward(self, sample): return sample

class LargeDenoiser(Denoiser): ...

class NotExported(ModelMixin):
    def forward(self, sample): return sample

class Weights(ModelMixin):
    def forward(self, sample):
        '''Only holds weights.'''
        pass
""",
        "models/autoencoders/codec.py": """
class Codec(ModelMixin):
    def forward(self, sample): return sample
""",
        "pipelines/paint/pipeline_paint.py": """
from transformers import TextTower, TextTokenizer
from ...models import Codec, Denoiser

class PaintPipeline(DiffusionPipeline):
    def __init__(self, vae: Codec, text: TextTower | None, t: TextTokenizer, unet: Denoiser): ...
""",
    },
    "sentence-transformers": {"__init__.py": ""},
    "open_clip": {
        "model_configs/ViT-S.json": '{"vision_cfg": {"layers": 4}, "text_cfg": {}}',
        "model_configs/RN5.json": '{"vision_cfg": {"layers": [1, 1]}, "text_cfg": {}}',
        "model_configs/named.json": (
            '{"vision_cfg": {"timm_model_name": "oak_small"}, "text_cfg": {}}'
        ),
    },
}


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with all the packages; inputs with one chain of sentence-transformers."""
    folder = tmp_path / "packages"
    for library, files in FILES.items():
        for name, text in files.items():
            path = folder / LIBRARIES[library].module / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    (folder / "timm-9.8.7.dist-info").mkdir()
    chain = tmp_path / "inputs" / "sentence-transformers" / "tiny"
    chain.mkdir(parents=True)
    (chain / "modules.json").write_text("[]")
    (chain / "config.json").write_text('{"model_type": "bert"}')
    monkeypatch.setenv("COMPILEWATCH_INPUTS", str(tmp_path / "inputs"))
    monkeypatch.setenv("COMPILEWATCH_CACHE", str(tmp_path / "cache"))
    return folder
