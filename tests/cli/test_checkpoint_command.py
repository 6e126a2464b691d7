"""`lockkeeper checkpoint`: both checkpoints are moved away, or none."""

from pathlib import Path

import pytest
import yaml

from streaming.runtime.checkpoints import checkpoints_locked, checkpoints_of, local_path
from streaming.settings import Settings, load_settings
from tests.cli.lockkeeper import Command


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Settings of a job whose checkpoint and its monitor's are there."""
    file = tmp_path / "lockkeeper.yaml"
    file.write_text(yaml.safe_dump({"checkpoint": str(tmp_path / "checkpoint")}))
    for place in checkpoints_of(load_settings(file, {})):
        Path(place).mkdir()
        (Path(place) / "metadata").write_text(place)
    return file


def _folders(tmp_path: Path) -> list[str]:
    return sorted(folder.name.partition(".archived-")[0] for folder in tmp_path.iterdir() if folder.is_dir())


def test_archive_moves_both_checkpoints_and_may_be_repeated(lockkeeper: Command, config: Path, tmp_path: Path) -> None:
    moved = lockkeeper("checkpoint", "archive", "--config", str(config), "--json")
    assert (moved.code, moved.err) == (0, "")
    [record] = moved.records
    assert list(record) == [str(tmp_path / "checkpoint"), str(tmp_path / "checkpoint-monitor")]
    for place, archived in record.items():
        assert not Path(place).exists()
        assert archived.startswith(f"{place}.archived-")
        assert (Path(archived) / "metadata").read_text() == place
    again = lockkeeper("checkpoint", "archive", "--config", str(config))
    assert (again.code, again.out) == (0, "")
    assert "nothing to move" in again.err


def test_archive_moves_the_one_that_is_named(lockkeeper: Command, config: Path, tmp_path: Path) -> None:
    place = (tmp_path / "checkpoint-monitor").as_uri()
    moved = lockkeeper("checkpoint", "archive", place, "--config", str(config))
    assert moved.code == 0
    assert moved.lines[0].startswith(f"{tmp_path / 'checkpoint-monitor'} -> ")
    assert (tmp_path / "checkpoint").exists()


@pytest.mark.parametrize("which", ["checkpoint", "checkpoint-monitor"])
def test_archive_moves_nothing_while_a_job_runs(lockkeeper: Command, config: Path, tmp_path: Path, which: str) -> None:
    """Also where it is another job, which uses one of the two alone."""
    other = Settings(checkpoint=str(tmp_path / which))
    with checkpoints_locked(other), checkpoints_locked(other):  # a second instance may start: it fences the first
        refused = lockkeeper("checkpoint", "archive", "--config", str(config))
    assert (refused.code, refused.out) == (1, "")
    assert f"a job uses the checkpoint {tmp_path / which}. Stop it first; nothing was moved" in refused.err
    assert (tmp_path / "checkpoint").exists()
    assert (tmp_path / "checkpoint-monitor").exists()
    assert lockkeeper("checkpoint", "archive", "--config", str(config)).code == 0


def test_archive_says_how_to_move_checkpoints_on_other_file_systems(lockkeeper: Command, config: Path) -> None:
    config.write_text("checkpoint: hdfs://namenode/jobs/checkpoint")
    refused = lockkeeper("checkpoint", "archive", "--config", str(config))
    assert refused.code == 1
    for place in ("hdfs://namenode/jobs/checkpoint", "hdfs://namenode/jobs/checkpoint-monitor"):
        assert f"hadoop fs -mv {place} {place}.archived-" in refused.err


@pytest.mark.parametrize(
    ("place", "path"),
    [
        ("checkpoint", "checkpoint"),
        ("./a:b", "./a:b"),
        ("/var/check point", "/var/check point"),
        ("file:/var/a", "/var/a"),
        ("file:///var/a%20b", "/var/a%20b"),
        ("hdfs://namenode/a", None),
        ("s3a://bucket/a", None),
    ],
)
def test_a_local_checkpoint_is_the_folder_that_spark_makes_of_it(place: str, path: str | None) -> None:
    assert local_path(place) == (None if path is None else Path(path))
