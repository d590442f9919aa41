from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from compilewatch.errors import LauncherError
from compilewatch.extras.cluster import node
from compilewatch.extras.cluster import node as ray_files
from compilewatch.launchers.local.launcher import LocalLauncher
from compilewatch.records import ConfigBuild, LibraryBuild
from tests import factories
from tests.fake_launcher import FakeLauncher


def config(path: Path, **fields: Any) -> ConfigBuild:
    return ConfigBuild(config_file=str(path), config_sha256="", **fields)


def test_a_request_names_its_files_where_they_are_laid_out(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text("{}")
    overrides = tmp_path / "overrides"
    overrides.mkdir()
    (overrides / "a.toml").write_text("a = 1")
    asked = factories.request("A", build=config(file), overrides_dir=str(overrides))
    paths = [*ray_files.own_files(asked), *filter(None, ray_files.shared_files(asked))]
    sent = {path: ray_files.read(path) for path in paths}
    there = ray_files.at_node(asked, sent, tmp_path / "node")
    assert isinstance(there.model.build, ConfigBuild)
    moved = Path(there.model.build.config_file)
    assert moved.is_relative_to(tmp_path / "node")
    assert moved.read_text() == "{}"
    assert there.overrides_dir is not None
    assert (Path(there.overrides_dir) / "a.toml").read_text() == "a = 1"
    assert ray_files.at_node(asked, sent, tmp_path / "node") == there


def test_a_folder_of_configurations_travels_with_its_folders(tmp_path: Path) -> None:
    folder = tmp_path / "chain"
    (folder / "1_Pooling").mkdir(parents=True)
    for name in ("modules.json", "1_Pooling/config.json"):
        (folder / name).write_text(name)
    for given, shown in ((folder, ""), (folder / "modules.json", "modules.json")):
        build = LibraryBuild(library="sentence-transformers", name="o/m", configuration=str(given))
        asked = factories.request("o/m", build=build)
        sent = {path: ray_files.read(path) for path in ray_files.own_files(asked)}
        there = ray_files.at_node(asked, sent, tmp_path / "node")
        assert isinstance(there.model.build, LibraryBuild)
        moved = Path(there.model.build.configuration or "")
        assert moved.is_relative_to(tmp_path / "node")
        assert moved.name == shown or moved.is_dir()
        inside = moved if moved.is_file() else moved / "1_Pooling" / "config.json"
        assert inside.read_text() == inside.relative_to(moved.parent if shown else moved).as_posix()


def test_a_repository_beside_its_configuration_does_not_travel(tmp_path: Path) -> None:
    asked = factories.request("A", build=config(tmp_path / "config.json", weights=True))
    assert ray_files.own_files(asked) == ()
    with pytest.raises(LauncherError, match="put them at the same path on every node"):
        ray_files.at_node(asked, {}, tmp_path)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(LauncherError, match="gone: cannot be sent to a node: No such file"):
        ray_files.read(str(tmp_path / "gone"))


def test_artifacts_beyond_the_limit_are_left_out_by_name(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "small").write_bytes(b"1")
    (tmp_path / "large").write_bytes(b"22")
    packed = ray_files.pack(tmp_path, most_bytes=2)
    assert packed == {
        "deep/small": b"1",
        "left_out.txt": b"large: 2 bytes, not sent back from the node\n",
    }


def test_what_comes_back_stays_in_its_folder(tmp_path: Path) -> None:
    for name in ("../x", "/x", "a/../../x"):
        with pytest.raises(LauncherError, match="rejected"):
            ray_files.write({name: b""}, tmp_path / "kept")
    assert not (tmp_path / "x").exists()


def test_a_trace_is_compressed_before_it_travels(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = FakeLauncher(
        artifacts={"torch_trace/a.log": b"t" * 9000, "tlparse/raw.log": b"t" * 9000}
    )
    monkeypatch.setattr(node, "node_name", lambda: "here")
    monkeypatch.setattr(node._Slot, "_of", lambda *_: cast(LocalLauncher, launcher))
    (environment,) = launcher.environments()
    asked = node.NodeTask(request=factories.request(), digest=environment.digest)
    parcel = node._Slot(None).evaluate(asked, {})
    assert parcel.problem == ""
    assert set(parcel.artifacts) == {"torch_trace/a.log.zst", "tlparse.zip"}
    assert sum(map(len, parcel.artifacts.values())) < 300
