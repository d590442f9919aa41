from __future__ import annotations

from pathlib import Path

from compilewatch.sources.transformers import LibrarySource, Resolver, concrete_classes


def test_every_class_of_the_installed_transformers_is_built_from_its_configuration(
    installed: LibrarySource,
) -> None:
    """Takes seconds: only the complete library has heads that a configuration cannot name."""
    library = installed.library()
    resolver = Resolver(library)
    heads = [each for each in concrete_classes(library) if each.model_type in library.model_types]
    assert len(heads) > 500
    for head in heads:
        config = {"model_type": head.model_type, "architectures": [head.name]}
        found = resolver.resolve(Path("config.json"), config)
        assert (found.build.class_name, found.skip_reason) == (head.name, None)
