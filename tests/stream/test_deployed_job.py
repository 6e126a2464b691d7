"""The job as Kubernetes runs it: under spark-submit, logged in, with the rights of the deployed resources alone."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from streaming.client import Client, Connection
from streaming.kafka.publish import PublishFailed, publish
from streaming.runtime.java import find_java
from streaming.runtime.spark import VECTOR_MODULE
from streaming.settings import Settings, load_settings
from tests.brokers import free_port
from tests.deploy.files import DEPLOY, IN_IMAGE, ROOT
from tests.deploy.kustomize import build
from tests.endpoint import get
from tests.stream.secured_broker import PASSWORD, SecuredBroker, apply, secured_broker
from tests.stream.world import group, request, role
from tests.waiting import wait_until

pytestmark = [pytest.mark.stream, pytest.mark.long]

BASE, PRODUCTION = (DEPLOY / "kubernetes" / name for name in ("base", "production"))
# What the operator of Spark adds, and what a test has less of. A driver that runs the tasks asks no API of Kubernetes.
OF_POD = {
    "spark.master": "k8s://https://kubernetes.invalid",
    "spark.kubernetes.submitInDriver": "true",
    "spark.kubernetes.driver.master": "local[2,8]",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.local.ip": "127.0.0.1",
}
CA = "/etc/kafka-ca/ca.crt"  # where the pods have the authority's certificate
START_SECONDS = 240.0


def _spec(resources: list[dict[str, Any]]) -> Any:
    [application] = [r for r in resources if r["kind"] == "SparkApplication"]
    return application["spec"]


def _environment(spec: Any, broker: SecuredBroker) -> dict[str, str]:
    """The container's variables as Kubernetes fills them in, but for the broker's address and authority."""
    [container] = spec["driverSpec"]["podTemplateSpec"]["spec"]["containers"]
    login = f'ScramLoginModule required username="lockkeeper" password="{PASSWORD}";'
    secrets = {"password": PASSWORD, "sasl.jaas.config": f"org.apache.kafka.common.security.scram.{login}"}
    values: dict[str, str] = {}
    for entry in container["env"]:
        text = entry["value"] if "value" in entry else secrets[entry["valueFrom"]["secretKeyRef"]["key"]]
        for name, value in values.items():
            text = text.replace(f"$({name})", value)
        text = text.replace(CA, str(broker.authority.ca))
        values[entry["name"]] = text
    values |= {"LOCKKEEPER_BOOTSTRAP_SERVERS": broker.scram, "LOCKKEEPER_METRICS_PORT": str(free_port())}
    return {**values, "SPARK_DRIVER_BIND_ADDRESS": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}


@contextlib.contextmanager
def _driver(spec: Any, environment: dict[str, str], folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """The driver's container, with the arguments that Spark on Kubernetes gives it; one pod's Spark is a local one."""
    conf = {**spec["sparkConf"], **OF_POD}
    lines = [f"{name}={value.replace(IN_IMAGE, f'{ROOT}/')}" for name, value in conf.items()]
    (folder / "spark.properties").write_text("\n".join(lines))
    main = spec["pyFiles"].replace(IN_IMAGE, f"{ROOT}/")
    settings = str(BASE / "lockkeeper.yaml")
    arguments = ["driver", "--properties-file", str(folder / "spark.properties"), "--class", spec["mainClass"], main]
    arguments += [settings if argument.startswith("/") else argument for argument in spec["driverArgs"]]
    command = [sys.executable, "-m", "streaming.runtime.container", *arguments]
    everything = {**os.environ, **environment, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=everything, cwd=folder, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _as_user(settings: Settings, user: str) -> Settings:
    return msgspec.structs.replace(settings, kafka={**settings.kafka, "sasl.username": user})


def test_the_deployed_resources_are_all_that_the_job_and_those_around_it_need(tmp_path: Path) -> None:
    modules = subprocess.run([find_java(), "--list-modules"], capture_output=True, text=True, check=True).stdout
    if VECTOR_MODULE not in modules:
        pytest.skip(f"spark-submit needs a Java with the module {VECTOR_MODULE}, which the image has")
    resources = build(BASE)
    with secured_broker() as broker:
        apply(broker.admin, resources)
        # With the logins of production, over TLS.
        environment = _environment(_spec(build(PRODUCTION)), broker)
        environment["LOCKKEEPER_CHECKPOINT"] = str(tmp_path / "checkpoint")
        settings = load_settings(BASE / "lockkeeper.yaml", environment)
        owner, client = (_as_user(settings, f"lockkeeper-{name}") for name in ("policies-lenses6", "client"))
        documents = [role("readers", "kafka:topic:prod/main/orders"), group("readers", "user:dana")]
        publish(owner, documents)
        with _driver(_spec(resources), environment, tmp_path) as driver:
            log = tmp_path / "log"
            with Client(Connection.of(client)) as asker:
                decision = asker.authorize(request("r-1", "dana", "orders"), START_SECONDS)
            assert driver.poll() is None, log.read_text(errors="replace")[-3000:]
            assert decision.allowed, decision
            # Spark's master is Kubernetes there, too, and it has no executors: the job was not ready, and ended for it.
            port = environment["LOCKKEEPER_METRICS_PORT"]
            wait_until(lambda: get(port, "/readyz")[0] == 200, "the probe of the pod succeeds", 60)
            assert "no executors" not in log.read_text(errors="replace")
            denied = r"User:lockkeeper-client is not authorized to Write topic authz\.policies\.lenses6\.v1"
            with pytest.raises(PublishFailed, match=denied):
                publish(client, documents)
            driver.send_signal(signal.SIGTERM)
            wait_until(lambda: driver.poll() is not None, "the driver ends when asked to", 60)
            # Not amid a batch: Java, which has the signal, waits for the job.
            assert driver.returncode == 0, log.read_text(errors="replace")[-3000:]
            assert "stopped" in log.read_text(errors="replace").splitlines()
