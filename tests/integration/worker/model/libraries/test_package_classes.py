"""Classes that other packages derive from those of Transformers."""

import json
from pathlib import Path
from typing import Any

import pytest

from compilewatch.data import OVERRIDES, package_classes
from compilewatch.records import Status
from compilewatch.sources.transformers import Resolver, read_library
from tests import factories
from tests.integration.worker.model.conftest import evaluated

CHRONOS: dict[str, Any] = {"context_length": 512, "input_patch_size": 16, "input_patch_stride": 16}
CHRONOS |= {"prediction_length": 64, "quantiles": [0.1, 0.5, 0.9], "use_reg_token": True}
BOLT: dict[str, Any] = {"model_type": "t5", "architectures": ["ChronosBoltModelForForecasting"]}
BOLT |= {"d_model": 64, "d_ff": 128, "d_kv": 16, "num_heads": 4, "num_layers": 4}
BOLT |= {"num_decoder_layers": 4, "vocab_size": 2, "feed_forward_proj": "relu"}
BOLT |= {"reg_token_id": 1, "pad_token_id": 0, "decoder_start_token_id": 0}
BOLT |= {"chronos_config": CHRONOS}


# Only the package itself shows that its class is built from Transformers' configuration.
@pytest.mark.torch
@pytest.mark.libraries
@pytest.mark.matrix
def test_a_class_of_a_package_is_built_and_called_as_its_reviewed_line_says(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(BOLT))
    resolver = Resolver(read_library(), package_classes(OVERRIDES))
    spec = resolver.resolve(factories.spec("org/bolt", source="hub"), config, BOLT)
    assert spec.skip_reason is None
    (result,) = evaluated([spec], "libraries", tmp_path)
    assert result.status in (Status.PASS, Status.GRAPH_BREAK), result.detail
    assert {each.name for each in result.inputs} == {"context"}
