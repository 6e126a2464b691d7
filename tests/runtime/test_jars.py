"""Jars come as locked or not at all; from a repository in a folder here, so that nothing needs a network."""

import hashlib
import tomllib
from pathlib import Path
from typing import get_args

import pytest

from streaming.errors import JarError
from streaming.runtime import jars
from streaming.runtime.jars import Coordinate, JarSet, LockedJar, ensure, read_lock

_CONTENT = b"a jar, as far as anybody asks"
_TOP = Coordinate("org.example", "top", "1.0")
_BELOW = Coordinate("org.example.below", "below", "2.0")
_LOCKED = LockedJar(_TOP, hashlib.sha256(_CONTENT).hexdigest())

_SETTINGS = """
<ivysettings>
  <settings defaultResolver="here"/>
  <resolvers><ibiblio name="here" m2compatible="true" root="{root}"/></resolvers>
</ivysettings>
"""
_POM = """
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>{c.organisation}</groupId><artifactId>{c.name}</artifactId><version>{c.revision}</version>
  <dependencies>{dependencies}</dependencies>
</project>
"""
_DEPENDENCY = """
<dependency>
  <groupId>{c.organisation}</groupId><artifactId>{c.name}</artifactId><version>{c.revision}</version>
</dependency>
"""


def _publish(repository: Path, coordinate: Coordinate, *needs: Coordinate) -> None:
    organisation = coordinate.organisation.replace(".", "/")
    folder = repository / organisation / coordinate.name / coordinate.revision
    folder.mkdir(parents=True)
    stem = f"{coordinate.name}-{coordinate.revision}"
    (folder / f"{stem}.jar").write_bytes(_CONTENT)
    dependencies = "".join(_DEPENDENCY.format(c=need) for need in needs)
    (folder / f"{stem}.pom").write_text(_POM.format(c=coordinate, dependencies=dependencies))


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's Ivy settings, which name a repository with `_TOP`, which needs `_BELOW`."""
    repository = tmp_path / "repository"
    _publish(repository, _TOP, _BELOW)
    _publish(repository, _BELOW)
    file = tmp_path / "ivysettings.xml"
    file.write_text(_SETTINGS.format(root=repository.as_uri()))
    monkeypatch.setenv(jars.SETTINGS_VARIABLE, str(file))
    return file


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache that does not exist yet."""
    return tmp_path / "cache"


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.usefixtures("settings")
def test_a_jar_is_fetched_without_what_it_needs_and_nothing_else_stays_in_the_cache(cache: Path) -> None:
    (path,) = ensure([_LOCKED], cache)
    assert path.read_bytes() == _CONTENT
    assert _files(cache) == [_TOP.file]


def test_a_second_time_nothing_is_asked_for(cache: Path, settings: Path) -> None:
    """The settings are gone by then: asking would be an error."""
    first = ensure([_LOCKED], cache)
    settings.unlink()
    assert ensure([_LOCKED], cache) == first


@pytest.mark.usefixtures("settings")
def test_a_jar_damaged_in_the_cache_is_fetched_again(cache: Path) -> None:
    (path,) = ensure([_LOCKED], cache)
    path.write_bytes(b"damaged")
    ensure([_LOCKED], cache)
    assert path.read_bytes() == _CONTENT


@pytest.mark.usefixtures("settings")
def test_a_jar_that_is_not_what_was_locked_is_an_error_and_is_not_installed(cache: Path) -> None:
    with pytest.raises(JarError, match=r"org\.example:top:1\.0 is not the file that was locked"):
        ensure([LockedJar(_TOP, "0" * 64)], cache)
    assert _files(cache) == []


@pytest.mark.usefixtures("settings")
def test_a_jar_the_repository_lacks_is_an_error_that_names_it_and_the_settings(cache: Path) -> None:
    absent = LockedJar(Coordinate("org.example", "absent", "1"), "0" * 64)
    with pytest.raises(JarError, match=r"(?s)LOCKKEEPER_IVY_SETTINGS.*org\.example#absent;1: not found"):
        ensure([absent], cache)


def test_settings_in_the_home_folder_are_used_when_the_variable_names_none(
    cache: Path, settings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = tmp_path / "home" / ".ivy2" / "ivysettings.xml"
    usual.parent.mkdir(parents=True)
    settings.rename(usual)
    monkeypatch.delenv(jars.SETTINGS_VARIABLE)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert ensure([_LOCKED], cache)[0].read_bytes() == _CONTENT


def test_settings_that_are_not_there_are_an_error_that_names_the_variable(cache: Path, settings: Path) -> None:
    settings.unlink()
    with pytest.raises(JarError, match=r"LOCKKEEPER_IVY_SETTINGS names .*, which is no file"):
        ensure([_LOCKED], cache)


@pytest.mark.usefixtures("settings")
def test_locking_takes_along_what_a_closure_needs_but_not_what_a_lone_jar_needs(tmp_path: Path) -> None:
    for closure, alone, expected in (([_TOP], [], [_TOP, _BELOW]), ([], [_TOP], [_TOP])):
        folder = tmp_path / f"resolved-{len(expected)}"
        folder.mkdir()
        assert jars.resolve(closure, alone, folder) == sorted(expected)


@pytest.mark.parametrize("jar_set", get_args(JarSet))
def test_the_lock_file_holds_every_coordinate_it_is_made_from(jar_set: JarSet) -> None:
    """Fails when jars.toml was changed and jars.lock was not written anew."""
    roots = tomllib.loads(Path(jars.__file__).with_name("jars.toml").read_text())[jar_set]
    locked = {str(jar.coordinate) for jar in read_lock(jar_set)}
    assert {name for names in roots.values() for name in names} <= locked


@pytest.mark.parametrize("content", ["[[broker]]\n", '[[spark]]\ncoordinate = "a:b:c"\n', "not toml", None])
def test_a_lock_file_that_cannot_be_used_is_an_error_that_says_how_to_mend_it(
    tmp_path: Path, content: str | None
) -> None:
    """Without the set, without a checksum, not TOML, not there."""
    lock = tmp_path / "jars.lock"
    if content is not None:
        lock.write_text(content)
    with pytest.raises(JarError, match=r"jars\.lock.*--lock"):
        read_lock("spark", lock)


@pytest.mark.parametrize("text", ["a:b", "a:b:", "a:b:c:d"])
def test_a_coordinate_has_three_parts(text: str) -> None:
    with pytest.raises(JarError, match="organisation:name:revision"):
        Coordinate.parse(text)
