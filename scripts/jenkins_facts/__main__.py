"""Writes stack/jenkins/facts.json: what Jenkins and its plugins take, from their own sources.

    python -m scripts.jenkins_facts FOLDER

FOLDER contains clones (bare ones too) of Jenkins and of the plugins in `REPOSITORIES`, each named
as its repository. Of each, the tag of the version that the Dockerfile or plugins.txt pins is read;
if a clone lacks that tag, or nothing is pinned, its newest commit. `sources` in the file names it.

The tests of stack/jenkins/ and of the Jenkinsfiles hold every attribute, method, step and symbol
that these use against the file.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

from scripts.jenkins_facts.facts import Index, dsl_of, facts_of
from scripts.jenkins_facts.java import classes

ROOT = Path(__file__).parents[2]
FACTS = ROOT / "stack" / "jenkins" / "facts.json"

REPOSITORIES = {
    "core": "jenkins",
    "antisamy-markup-formatter": "antisamy-markup-formatter-plugin",
    "configuration-as-code": "configuration-as-code-plugin",
    "credentials": "credentials-plugin",
    "durable-task": "durable-task-plugin",
    "git": "git-plugin",
    "htmlpublisher": "htmlpublisher-plugin",
    "job-dsl": "job-dsl-plugin",
    "junit": "junit-plugin",
    "mailer": "mailer-plugin",
    "matrix-auth": "matrix-auth-plugin",
    "pipeline-model-definition": "pipeline-model-definition-plugin",
    "pipeline-utility-steps": "pipeline-utility-steps-plugin",
    "ssh-credentials": "ssh-credentials-plugin",
    "ssh-slaves": "ssh-agents-plugin",
    "timestamper": "timestamper-plugin",
    "workflow-basic-steps": "workflow-basic-steps-plugin",
    "workflow-cps": "workflow-cps-plugin",
    "workflow-durable-task-step": "workflow-durable-task-step-plugin",
    "workflow-job": "workflow-job-plugin",
    "workflow-scm-step": "workflow-scm-step-plugin",
    "workflow-support": "workflow-support-plugin",
}
"""Plugin -> the name of its repository: those of plugins.txt and of their closure that are used."""

_DECLARES = re.compile(r"(?:^|/)src/main/(?:java|groovy|resources)/.*\.(?:java|groovy)$")


def pinned() -> dict[str, str]:
    """Plugin (or `core`) -> the version that an image of the controller gets."""
    lines = (ROOT / "stack" / "jenkins" / "plugins.txt").read_text(encoding="utf-8").split()
    found = dict(line.split(":", 1) for line in lines)
    docker = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    core = re.search(r"^FROM jenkins/jenkins:([\d.]+)", docker, re.MULTILINE)
    return found | ({"core": core[1]} if core else {})


def git(clone: Path, *arguments: str) -> bytes:
    return subprocess.run(["git", "-C", clone, *arguments], check=True, capture_output=True).stdout


def commit(clone: Path, name: str, wanted: str | None) -> str:
    """The tag of the wanted version, or `HEAD`."""
    tags = git(clone, "tag").decode().split()
    for tag in (wanted, f"{name}-{wanted}", f"{clone.name}-{wanted}", f"v{wanted}"):
        if wanted and tag in tags:
            return tag
    return "HEAD"


def files(clone: Path, tag: str) -> Iterator[str]:
    """The texts of the Java and Groovy files of a version, those of tests excepted."""
    with tarfile.open(fileobj=BytesIO(git(clone, "archive", "--format=tar", tag))) as archive:
        for member in archive:
            if _DECLARES.search(member.name) and "/docs/" not in member.name:
                content = archive.extractfile(member)
                assert content is not None
                yield content.read().decode("utf-8", "replace")


def read(folder: Path) -> Mapping[str, Any]:
    """All facts of the clones in a folder."""
    # Job DSL has classes of its own with the names of core's, such as Job.
    index, dsl, sources, wanted = Index(), Index(), {}, pinned()
    for name, repository in REPOSITORIES.items():
        clone = folder / repository
        if not clone.is_dir():
            sys.exit(f"jenkins_facts: {clone} is missing: clone the repository {repository} there")
        tag = commit(clone, name, wanted.get(name))
        sources[name] = {
            "pinned": wanted.get(name),
            "read": git(clone, "describe", "--tags", "--always", tag).decode().strip(),
            "date": git(clone, "log", "-1", "--format=%cs", tag).decode().strip(),
        }
        for text in files(clone, tag):
            for each in classes(text):
                if name == "job-dsl":
                    dsl.add(replace(each), plugin=name)
                index.add(each, plugin=name)
    return {"sources": sources, **facts_of(index), "dsl": dsl_of(dsl)}


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python -m scripts.jenkins_facts FOLDER (of clones; see the module's text)")
    text = json.dumps(read(Path(sys.argv[1])), indent=1, sort_keys=True, ensure_ascii=False)
    # One line for each class and step: an update shows what changed.
    compact = re.sub(r"\n {3,}", " ", text)
    FACTS.write_text(re.sub(r"\n  (?=[\]}])", " ", compact) + "\n", encoding="utf-8")
    print(f"jenkins_facts: wrote {FACTS.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
