"""A Transformers in miniature, and the scan of the installed one, made once and kept."""

from pathlib import Path

import pytest

from compilewatch.config import cache_folder
from compilewatch.sources.transformers import LibrarySource
from tests import factories

FILES = {
    "__init__.py": '__version__ = "9.9.9"\n',
    "modeling_utils.py": """
class PreTrainedModel:
    config: PreTrainedConfig
    input_modalities: str = "text"
    def __init__(self, config): ...
""",
    "modeling_layers.py": """
class GenericForSequenceClassification:
    def __init__(self, config): ...
    def forward(self, input_ids=None, labels=None): ...
""",
    "models/auto/auto_mappings.py": """
CONFIG_MAPPING_NAMES = OrderedDict([("acorn", "AcornConfig"), ("b-eye", "BEyeConfig")])
""",
    "models/auto/configuration_auto.py": """
CONFIG_MAPPING_NAMES.update({"acorn_text": "AcornTextConfig"})
""",
    "models/auto/modeling_auto.py": """
MODEL_MAPPING_NAMES = OrderedDict([("acorn", "AcornModel"), ("b-eye", ("BEyeModel", "Other"))])
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES = OrderedDict([("acorn", "AcornForCausalLM")])
MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES = OrderedDict([*list(OTHER.items()), ("c", "C")])
MODEL_MAPPING = _LazyAutoMapping(CONFIG_MAPPING_NAMES, MODEL_MAPPING_NAMES)
""",
    "models/acorn/configuration_acorn.py": '''
@auto_docstring(checkpoint="org/acorn-base")
class AcornConfig(PreTrainedConfig):
    model_type = "acorn"
class AcornTextConfig(AcornConfig):
    """See the [text tower](https://huggingface.co/org/acorn-text)."""
    model_type: ClassVar[str] = "acorn_text"
class AcornPlainConfig(AcornConfig): ...
''',
    "models/acorn/modeling_acorn.py": """
from ...modeling_layers import GenericForSequenceClassification
from ...modeling_utils import PreTrainedModel
from .configuration_acorn import AcornConfig, AcornPlainConfig, AcornTextConfig

class AcornPreTrainedModel(PreTrainedModel):
    config: AcornConfig
class AcornLayer(nn.Module):
    def __init__(self): ...
class AcornModel(AcornPreTrainedModel):
    def __init__(self, config): ...
    def forward(self, input_ids, *, attention_mask=None): ...
class AcornTextModel(AcornModel):
    config: AcornTextConfig
class AcornPlainModel(AcornModel):
    config_class = AcornPlainConfig
class AcornForCausalLM(AcornPreTrainedModel, GenerationMixin):
    def __init__(self, config): ...
    def forward(self, input_ids, labels=None): ...
class AcornForSequenceClassification(GenericForSequenceClassification, AcornPreTrainedModel): ...
class PretrainedAcornModel(AcornPreTrainedModel): ...
class AcornHiddenModel(AcornModel): ...

__all__ = ["AcornForCausalLM", "AcornForSequenceClassification", "AcornLayer", "AcornModel",
           "AcornPlainModel", "AcornPreTrainedModel", "AcornTextModel", "PretrainedAcornModel"]
""",
    "models/b_eye/configuration_b_eye.py": """
class BEyeConfig(PreTrainedConfig):
    model_type = "b-eye"
""",
    "models/b_eye/modeling_b_eye.py": """
from ..acorn.modeling_acorn import AcornPreTrainedModel as Base
from .configuration_b_eye import BEyeConfig

class BEyePreTrainedModel(Base):
    config: BEyeConfig
    input_modalities = ("image",)
@requires(backends=("no_such_backend",))
class BEyeModel(BEyePreTrainedModel):
    def __init__(self, config): ...
    def forward(self, pixel_values): ...
class BEyeToolModel(BEyePreTrainedModel):
    config: NowhereConfig
    def __init__(self, config): ...

__all__ = ["BEyeModel", "BEyePreTrainedModel", "BEyeToolModel"]
""",
}


@pytest.fixture(scope="session")
def miniature(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package folder of a Transformers with two architectures, which no test changes."""
    root = tmp_path_factory.mktemp("miniature") / "transformers"
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


@pytest.fixture(scope="session")
def scans() -> Path:
    """Where all tests find the scan of the installed Transformers.

    It takes more than ten seconds, and is kept between test runs (`tests/conftest.py`).
    """
    return cache_folder()


@pytest.fixture(scope="session")
def installed(scans: Path) -> LibrarySource:
    """The library source over the installed Transformers."""
    return LibrarySource(factories.places(cache=str(scans)))
