"""`compilewatch papers`: research papers to checked, compiled and executed code."""

from __future__ import annotations

import click

from compilewatch.extras.papers.cli.check import check_verb
from compilewatch.extras.papers.cli.find import find_verb
from compilewatch.extras.papers.cli.generate import generate_verb
from compilewatch.extras.papers.cli.list import list_verb
from compilewatch.extras.papers.cli.preflight import preflight_verb
from compilewatch.extras.papers.cli.publish import publish_verb
from compilewatch.extras.papers.cli.run import run_verb
from compilewatch.extras.papers.cli.show import show_verb

command = click.Group(
    "papers",
    help="""Turn research papers into PyTorch code that is checked, compiled and executed.

    Papers come from an OpenSearch index (OPENSEARCH_ENDPOINT) or a folder. A model of Bedrock
    (BEDROCK_MODEL_ID) plans, writes and reviews the code, which only runs in a sandbox. Each stage
    is stored in outputs/papers/. Not yet tested on AWS; see docs/papers.md.
    """,
    commands=[
        find_verb,
        generate_verb,
        run_verb,
        check_verb,
        list_verb,
        show_verb,
        publish_verb,
        preflight_verb,
    ],
)
