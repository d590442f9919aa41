from pathlib import Path
from typing import Any, cast

import pytest

from compilewatch.errors import LauncherError
from compilewatch.extras.cluster import node
from compilewatch.launchers.local.launcher import LocalLauncher
from compilewatch.records import ConfigBuild, LibraryBuild
from tests import factories
from tests.fake_launcher import FakeLauncher


def config(path: Path, **fields: Any) -> ConfigBuild:
    return ConfigBuild(config_file=str(path), config_sha256="", **fields)


def test_a_request_names_its_files_where_they_are_laid_out(tmp_path: Path) -> None:
    file, overrides, there = tmp_path / "config.json", tmp_path / "overrides", tmp_path / "node"
    file.write_text("{}")
    overrides.mkdir()
    (overrides / "a.toml").write_text("a = 1")
    asked = factories.request("A", build=config(file), overrides_dir=str(overrides))
    sent = {path: node.read(path) for path in node.own_files(asked)}
    moved = node.at_node(asked, sent, there)
    assert isinstance(moved.model.build, ConfigBuild)
    assert Path(moved.model.build.config_file).is_relative_to(there)
    assert Path(moved.model.build.config_file).read_text() == "{}"
    assert Path(moved.overrides_dir or "", "a.toml").read_text() == "a = 1"
    assert node.at_node(asked, sent, there) == moved


def test_a_folder_of_configurations_travels_with_its_folders(tmp_path: Path) -> None:
    folder = tmp_path / "chain"
    (folder / "1_Pooling").mkdir(parents=True)
    for name in ("modules.json", "1_Pooling/config.json"):
        (folder / name).write_text(name)
    for given, inside in ((folder, "1_Pooling/config.json"), (folder / "modules.json", "")):
        build = LibraryBuild(library="sentence-transformers", name="o/m", configuration=str(given))
        asked = factories.request("o/m", build=build)
        sent = {path: node.read(path) for path in node.own_files(asked)}
        moved = node.at_node(asked, sent, tmp_path / "node").model.build
        assert isinstance(moved, LibraryBuild)
        place = Path(moved.configuration or "")
        assert place.is_relative_to(tmp_path / "node")
        assert (place / inside).read_text() == (inside or "modules.json")


def test_what_cannot_travel_is_named(tmp_path: Path) -> None:
    asked = factories.request("A", build=config(tmp_path / "config.json", weights=True))
    assert node.own_files(asked) == ()
    with pytest.raises(LauncherError, match="put them at the same path on every node"):
        node.at_node(asked, {}, tmp_path)
    with pytest.raises(LauncherError, match="gone: cannot be sent: No such file"):
        node.read(str(tmp_path / "gone"))


def test_what_comes_back_stays_in_its_folder(tmp_path: Path) -> None:
    for name in ("../x", "/x", "a/../../x"):
        with pytest.raises(LauncherError, match="rejected"):
            node.write({name: b""}, tmp_path / "kept")
    assert not (tmp_path / "x").exists()


def test_a_trace_is_compressed_before_it_travels(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = FakeLauncher(
        artifacts={"torch_trace/a.log": b"t" * 9000, "tlparse/raw.log": b"t" * 9000}
    )
    monkeypatch.setattr(node, "node_name", lambda: "here")
    monkeypatch.setattr(node._Slot, "_of", lambda *_: cast(LocalLauncher, launcher))
    (environment,) = launcher.environments()
    _, artifacts = node._Slot(None).evaluate(factories.request(), environment.digest, {})
    assert set(artifacts) == {"torch_trace/a.log.zst", "tlparse.zip"}
    assert sum(map(len, artifacts.values())) < 300
