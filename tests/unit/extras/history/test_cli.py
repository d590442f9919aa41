"""What `compilewatch bisect` rejects before anything runs."""

from __future__ import annotations

import pytest

from compilewatch.errors import UsageError
from compilewatch.extras.history import cli


def test_bisect_rejects_the_setting_for_a_target_without_it() -> None:
    arguments = ["BertModel", "--good", "5.5.4", "--bad", "5.23.0", "--torch", "2.15.0"]
    arguments += ["--target", "export", "--nested-graph-breaks", "on"]
    with pytest.raises(UsageError, match="--nested-graph-breaks is a setting of the target dynamo"):
        cli.bisect_command.main(arguments, standalone_mode=False)
