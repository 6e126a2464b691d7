"""The image's entry point: a command of lockkeeper, or the part of Spark that Kubernetes starts a container as.

Spark on Kubernetes starts its containers with `driver …`, what spark-submit takes, and `executor`, all else being in
the environment. What it sets there is Spark's own contract with images.
"""

import os
import pwd
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from streaming.runtime.jars import classpath
from streaming.runtime.java import find_java, pyspark_folder

BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
JAVA_OPTION = "SPARK_JAVA_OPT_"  # and a number
OPTIONS_OF = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}
"""The options of an executor, and the variables that hold their values."""


def command_of(arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The command that a container with these arguments and this environment is there for.

    Raises KeyError when Spark's part of the environment is not there: somebody else started it as an executor.
    """
    match list(arguments):
        case ["driver", *rest]:
            return _driver(rest, environment)
        case ["executor", *_]:
            return _executor(environment)
        case _:
            return ["lockkeeper", *arguments]


def named_user(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables by which Java and Hadoop know a name of this user, whose id /etc/passwd does not have; {}: it does.

    Platforms such as OpenShift choose user ids. Java's login refuses those without a name ("invalid null input: name").
    libnss_wrapper adds the name for this container's processes alone: an /etc/passwd that its group may write would let
    every process of the container make itself root.
    """
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        # Not before it is needed: a read-only root may have no folder for temporary files.
        names = Path(tempfile.gettempdir()) / f"passwd-{os.getuid()}"
        entry = f"lockkeeper:x:{os.getuid()}:{os.getgid()}::{environment.get('HOME', '/')}:/usr/sbin/nologin\n"
        names.write_text(Path("/etc/passwd").read_text(encoding="utf-8") + entry, encoding="utf-8")
        wrapper = {"NSS_WRAPPER_PASSWD": str(names), "NSS_WRAPPER_GROUP": "/etc/group"}
        return {**wrapper, "LD_PRELOAD": " ".join(filter(None, ("libnss_wrapper.so", environment.get("LD_PRELOAD"))))}
    return {}


def _driver(arguments: list[str], environment: Mapping[str, str]) -> list[str]:
    submit = [str(pyspark_folder() / "bin" / "spark-submit"), "--deploy-mode", "client"]
    bind = f"spark.driver.bindAddress={environment['SPARK_DRIVER_BIND_ADDRESS']}"
    return [*submit, "--conf", bind, "--driver-class-path", _path(classpath("spark")), *arguments]


def _executor(environment: Mapping[str, str]) -> list[str]:
    memory = environment["SPARK_EXECUTOR_MEMORY"]
    jars = _path([Path(environment.get("SPARK_CONF_DIR", "/opt/spark/conf")), pyspark_folder() / "jars" / "*"])
    arguments = [part for option, name in OPTIONS_OF.items() for part in (option, environment[name])]
    options = [*_java_options(environment), f"-Xms{memory}", f"-Xmx{memory}"]
    return [str(find_java()), *options, "-cp", f"{jars}{os.pathsep}{_path(classpath('spark'))}", BACKEND, *arguments]


def _java_options(environment: Mapping[str, str]) -> list[str]:
    """In the order of their numbers: a later one may undo an earlier one."""
    numbers = sorted(int(name.removeprefix(JAVA_OPTION)) for name in environment if name.startswith(JAVA_OPTION))
    return [environment[f"{JAVA_OPTION}{number}"] for number in numbers]


def _path(entries: Sequence[Path]) -> str:
    return os.pathsep.join(map(str, entries))


def main() -> None:
    """Become that command: it gets the container's signals itself."""
    try:
        command = command_of(sys.argv[1:], os.environ)
    except KeyError as missing:
        _refuse(f"Spark starts a container as {sys.argv[1]}, with the variable {missing.args[0]}, which is not set")
    try:
        os.environ.update(named_user(os.environ))
    except OSError as error:
        _refuse(f"user {os.getuid()} has no name, and no folder for a file that gives it one: mount /tmp: {error}")
    os.execvp(command[0], command)


def _refuse(reason: str) -> NoReturn:
    print(f"lockkeeper: {reason}", file=sys.stderr)
    sys.exit(2)  # as for a wrong use of a command


if __name__ == "__main__":
    main()
