"""The Kubernetes resources: of the right shape, fitting each other, the code and the image."""

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from streaming.enforcer.source import session_settings
from streaming.kafka.manifests import topic_manifests, user_manifests
from streaming.monitor.query import monitor_settings
from streaming.runtime.spark import OF_EXECUTORS
from streaming.settings import Settings, load_settings, variables
from streaming.topics import topic_specs
from tests.cli.lockkeeper import Command
from tests.deploy.files import DEPLOY, IN_IMAGE, ROOT, instruction, parse_command
from tests.deploy.kustomize import Resource, build, key
from tests.deploy.schemas import SCHEMAS

KUBERNETES = DEPLOY / "kubernetes"
BASE, PRODUCTION = KUBERNETES / "base", KUBERNETES / "production"
NAME = "app.kubernetes.io/name"

both = pytest.mark.parametrize("folder", [BASE, PRODUCTION], ids=lambda folder: folder.name)


def _named(folder: Path, kind: str, name: str = "lockkeeper") -> Resource:
    return {key(resource): resource for resource in build(folder)}[kind, name]


def _pod(folder: Path, part: str = "driverSpec") -> Resource:
    found: Resource = _named(folder, "SparkApplication")["spec"][part]["podTemplateSpec"]
    return found


def _container(folder: Path, part: str = "driverSpec") -> Resource:
    [container] = _pod(folder, part)["spec"]["containers"]
    found: Resource = container
    return found


def _environment(folder: Path) -> dict[str, str]:
    """The driver's variables, secrets replaced as Kubernetes does it."""
    entries = _container(folder)["env"]
    values: dict[str, str] = {}
    for entry in entries:
        text = entry["value"] if "value" in entry else f"secret {entry['valueFrom']['secretKeyRef']['key']}"
        for name, value in values.items():
            text = text.replace(f"$({name})", value)
        values[entry["name"]] = text
    return values


def _settings(folder: Path) -> Settings:
    return load_settings(BASE / "lockkeeper.yaml", _environment(folder))


@both
def test_every_resource_has_the_shape_of_its_kind(folder: Path) -> None:
    resources = build(folder)
    assert len({key(resource) for resource in resources}) == len(resources)
    for resource in resources:
        jsonschema.Draft202012Validator(SCHEMAS[resource["kind"]]).validate(resource)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("SparkApplication", lambda found: found["spec"].pop("runtimeVersions")),
        ("SparkApplication", lambda found: found["spec"]["sparkConf"].update({"spark.executor.cores": 4})),
        ("SparkApplication", lambda found: found["spec"].update(pythonFiles="misspelt")),
        ("KafkaUser", lambda found: found["spec"]["authorization"]["acls"][0]["operations"].append("read")),
        ("KafkaTopic", lambda found: found["spec"].update(partitions="6")),
        ("ServiceMonitor", lambda found: found.update(apiVersion="monitoring.coreos.com/v2")),
    ],
)
def test_the_shapes_find_mistakes(kind: str, change: Any) -> None:
    found = next(resource for resource in build(BASE) if resource["kind"] == kind)
    change(found)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(SCHEMAS[kind]).validate(found)


@both
def test_kustomize_builds_the_same(folder: Path) -> None:
    tools = (["kubectl", "kustomize"], ["kustomize", "build"])
    command = next((tool for tool in tools if shutil.which(tool[0])), None)
    if command is None:
        pytest.skip("neither kubectl nor kustomize is on this machine")
    shown = subprocess.run([*command, str(folder)], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    built = {key(resource): resource for resource in yaml.safe_load_all(shown.stdout)}
    assert built == {key(resource): resource for resource in build(folder)}


def test_the_topics_and_users_are_those_that_the_command_writes(lockkeeper: Command) -> None:
    for file, options in (("topics.yaml", []), ("users.yaml", ["--users"])):
        written = (BASE / file).read_text(encoding="utf-8")
        shown = lockkeeper("topics", "manifest", *options, "--config", str(BASE / "lockkeeper.yaml"))
        assert written.split("\n", 1)[1] == shown.out, f"write {file} anew, as its first line says"


def test_every_topic_of_the_job_is_there_with_its_settings() -> None:
    made = {r["spec"]["topicName"]: r["spec"] for r in build(BASE) if r["kind"] == "KafkaTopic"}
    specs = {spec.name: spec for spec in topic_specs(_settings(BASE).topics)}
    assert made.keys() == specs.keys()
    for name, spec in specs.items():
        assert all(rule.holds(made[name]["config"].get(rule.setting)) for rule in spec.rules), name
        assert spec.partitions in (None, made[name]["partitions"])


def test_in_production_what_is_asked_and_answered_is_spread_and_documents_are_not() -> None:
    made = [r["spec"] for r in build(PRODUCTION) if r["kind"] == "KafkaTopic"]
    specs = {spec.name: spec for spec in topic_specs(_settings(PRODUCTION).topics)}
    assert {topic["partitions"] for topic in made if specs[topic["topicName"]].partitions is None} == {24}
    assert {topic["partitions"] for topic in made if specs[topic["topicName"]].partitions == 1} == {1}
    assert {topic["config"]["min.insync.replicas"] for topic in made} == {"2"}
    assert {topic["replicas"] for topic in made} == {3}


def test_the_job_may_act_under_the_names_of_both_its_queries() -> None:
    settings = _settings(BASE)
    user = _named(BASE, "KafkaUser")
    acls = {(acl["resource"]["type"], acl["resource"]["name"]) for acl in user["spec"]["authorization"]["acls"]}
    for name in (settings.job_name, monitor_settings(settings).job_name):
        assert {("group", name), ("transactionalId", name)} <= acls


def test_topics_whose_names_kubernetes_would_refuse_keep_them() -> None:
    settings = load_settings(None, {"LOCKKEEPER_TOPICS_FACTS": "Authz_Facts", "LOCKKEEPER_JOB_NAME": "Lock_Keeper"})
    resources = [*topic_manifests(settings, "kafka", 6, 3), *user_manifests(settings, "kafka")]
    for resource in resources:
        jsonschema.Draft202012Validator(SCHEMAS[resource["kind"]]).validate(resource)
    assert ("authz-facts", "Authz_Facts") in [
        (resource["metadata"]["name"], resource["spec"].get("topicName")) for resource in resources
    ]


def test_topics_whose_names_differ_in_what_kubernetes_refuses_are_resources_of_their_own() -> None:
    """Under one name, the one that is applied last took the place of the others, whose topics were not made."""
    alone, requests = ["a-b"], ["a-b", "a_b", "A_b"]
    first, all_ = (
        {r["spec"]["topicName"]: r["metadata"]["name"] for r in topic_manifests(_asking(names), "kafka", 6, 3)}
        for names in (alone, requests)
    )
    assert len(set(all_.values())) == len(all_)
    assert first.items() <= all_.items(), "a topic that is added renames no resource"
    for name in all_.values():
        assert re.fullmatch(KUBERNETES_NAME, name), name


def _asking(requests: list[str]) -> Settings:
    return load_settings(None, {"LOCKKEEPER_TOPICS_REQUESTS": json.dumps(requests)})


# DNS-1123, a subdomain, as Kubernetes checks names of resources.
KUBERNETES_NAME = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"


@pytest.mark.parametrize("job_name", ["Payments_", "_payments", "pay._ments", "pay..ments", "payments.", "-pay-"])
def test_the_users_of_any_job_name_have_names_that_kubernetes_takes(job_name: str) -> None:
    names = [r["metadata"]["name"] for r in user_manifests(Settings(job_name=job_name), "kafka")]
    for name in names:
        assert re.fullmatch(KUBERNETES_NAME, name), name
    assert len(set(names)) == len(names)


@both
def test_the_driver_runs_a_command_and_a_file_that_are_in_the_image(folder: Path) -> None:
    spec = _named(folder, "SparkApplication")["spec"]
    main = spec["pyFiles"].removeprefix(f"local://{IN_IMAGE}")
    assert (ROOT / main).is_file()
    dockerfile = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    assert f"COPY {main} ./{main}" in dockerfile
    assert f"WORKDIR {IN_IMAGE.rstrip('/')}\n" in dockerfile
    assert parse_command(spec["driverArgs"]) == "run"
    [settings] = _named(folder, "ConfigMap")["data"]
    mounted = {mount["name"]: mount["mountPath"] for mount in _container(folder)["volumeMounts"]}
    assert spec["driverArgs"][-1] == f"{mounted['settings']}/{settings}"


@both
def test_spark_is_of_the_version_that_the_project_pins_and_starts_as_the_job_wants(folder: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    spec = _named(folder, "SparkApplication")["spec"]
    assert f"pyspark=={spec['runtimeVersions']['sparkVersion']}" in project["optional-dependencies"]["job"]
    wanted, conf = session_settings(Settings()), spec["sparkConf"]
    assert conf["spark.driver.memory"] == wanted["spark.driver.memory"]
    *options, logging = conf["spark.driver.extraJavaOptions"].split()
    assert options == wanted["spark.driver.extraJavaOptions"].split()
    log_config = logging.removeprefix(f"-Dlog4j2.configurationFile=file://{IN_IMAGE}")
    assert (ROOT / log_config).is_file()
    of_executors = {name: value for name, value in conf.items() if name in OF_EXECUTORS}
    assert of_executors == (OF_EXECUTORS if "spark.executor.instances" in conf else {})


@both
def test_the_drivers_variables_are_settings_and_make_sense(folder: Path) -> None:
    ours = {name for name in _environment(folder) if name.startswith("LOCKKEEPER_")}
    assert ours <= variables().keys()
    settings = _settings(folder)
    assert settings.kafka["sasl.username"] == settings.job_name
    assert settings.kafka["sasl.password"] == "secret password"
    assert settings.source["kafka.sasl.jaas.config"] == "secret sasl.jaas.config"
    for name in ("security.protocol", "sasl.mechanism"):
        assert settings.source[f"kafka.{name}"] == settings.kafka[name]


@both
def test_the_services_of_the_folder_do_not_keep_the_job_from_starting(folder: Path) -> None:
    """Kubernetes sets variables for each Service of the namespace, and some have the names of settings."""
    links = {}
    for resource in build(folder):
        if resource["kind"] == "Service" and resource["spec"].get("clusterIP") != "None":
            name, [port, *_] = resource["metadata"]["name"].upper().replace("-", "_"), resource["spec"]["ports"]
            links |= {f"{name}_SERVICE_HOST": "10.0.0.1", f"{name}_PORT": f"tcp://10.0.0.1:{port['port']}"}
    assert {"LOCKKEEPER_SERVE_PORT", "LOCKKEEPER_CONSOLE_PORT"} <= links.keys() & variables().keys()
    assert load_settings(BASE / "lockkeeper.yaml", {**links, **_environment(folder)}) == _settings(folder)


def test_the_base_has_one_pod_and_production_executors_of_the_same_image_with_tls() -> None:
    base, production = (_named(folder, "SparkApplication")["spec"] for folder in (BASE, PRODUCTION))
    assert base["sparkConf"]["spark.kubernetes.driver.master"].startswith("local[")
    assert "executorSpec" not in base
    assert "spark.kubernetes.driver.master" not in production["sparkConf"]
    assert int(production["sparkConf"]["spark.executor.instances"]) > 1
    assert _settings(BASE).kafka["security.protocol"] == "SASL_PLAINTEXT"
    assert _settings(PRODUCTION).kafka["security.protocol"] == "SASL_SSL"
    assert _settings(PRODUCTION).bootstrap_servers.endswith(":9093")


@pytest.mark.parametrize("part", ["driverSpec", "executorSpec"])
def test_in_production_certificates_are_where_the_settings_look_for_them(part: str) -> None:
    """Executors read from Kafka too."""
    mounted = {mount["mountPath"] for mount in _container(PRODUCTION, part)["volumeMounts"]}
    settings = _settings(PRODUCTION)
    for place in (settings.kafka["ssl.ca.location"], settings.source["kafka.ssl.truststore.location"]):
        assert str(Path(place).parent) in mounted


@both
def test_what_pods_refer_to_is_there(folder: Path) -> None:
    resources = {key(resource) for resource in build(folder)}
    conf = _named(folder, "SparkApplication")["spec"]["sparkConf"]
    assert ("ServiceAccount", conf["spark.kubernetes.authenticate.driver.serviceAccountName"]) in resources
    for part in ("driverSpec", "executorSpec") if folder == PRODUCTION else ("driverSpec",):
        volumes = {volume["name"]: volume for volume in _pod(folder, part)["spec"]["volumes"]}
        assert {mount["name"] for mount in _container(folder, part)["volumeMounts"]} == volumes.keys()
        assert ("PersistentVolumeClaim", volumes["checkpoint"]["persistentVolumeClaim"]["claimName"]) in resources
    secrets = {e["valueFrom"]["secretKeyRef"]["name"] for e in _container(folder)["env"] if "valueFrom" in e}
    assert {("KafkaUser", secret) for secret in secrets} <= resources


@both
def test_the_checkpoint_is_on_a_volume_that_all_who_write_it_share(folder: Path) -> None:
    """Executors write the monitor's state."""
    modes = _named(folder, "PersistentVolumeClaim", "lockkeeper-checkpoint")["spec"]["accessModes"]
    assert modes == (["ReadWriteMany"] if folder == PRODUCTION else ["ReadWriteOnce"])
    for part in ("driverSpec", "executorSpec") if folder == PRODUCTION else ("driverSpec",):
        [mount] = [m for m in _container(folder, part)["volumeMounts"] if m["name"] == "checkpoint"]
        for settings in (_settings(folder), monitor_settings(_settings(folder))):
            assert settings.checkpoint.startswith(f"{mount['mountPath']}/")


@both
def test_pods_run_as_the_images_user_without_rights_they_do_not_need(folder: Path) -> None:
    """They name no user: the image does, by number. A platform that chooses one, such as OpenShift, refuses others."""
    _, group = map(int, instruction("USER").split(":"))
    for part in ("driverSpec", "executorSpec") if folder == PRODUCTION else ("driverSpec",):
        # The group may write the checkpoint's volume.
        wanted = {"runAsNonRoot": True, "fsGroup": group, "seccompProfile": {"type": "RuntimeDefault"}}
        assert _pod(folder, part)["spec"]["securityContext"] == wanted
        own = _container(folder, part)["securityContext"]
        assert own == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


@both
def test_prometheus_finds_the_driver_and_the_probes_ask_where_it_answers(folder: Path) -> None:
    labels, container = _pod(folder)["metadata"]["labels"], _container(folder)
    service, monitor = _named(folder, "Service"), _named(folder, "ServiceMonitor")
    assert service["spec"]["selector"].items() <= labels.items()
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert service["metadata"]["labels"][monitor["spec"]["jobLabel"]] == "lockkeeper"
    [port] = container["ports"]
    [served] = service["spec"]["ports"]
    [scraped] = monitor["spec"]["endpoints"]
    assert port["name"] == served["targetPort"] == served["name"] == scraped["port"]
    environment = _environment(folder)
    assert str(port["containerPort"]) == environment["LOCKKEEPER_METRICS_PORT"] == str(served["port"])
    assert environment["LOCKKEEPER_METRICS_ADDRESS"] == "0.0.0.0"
    asked = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert {name: probe["path"] for name, probe in asked.items()} == {
        "startup": "/healthz",
        "liveness": "/healthz",
        "readiness": "/readyz",
    }
    assert {probe["port"] for probe in asked.values()} == {port["name"]}
    policy = _named(folder, "NetworkPolicy")["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    assert policy["ingress"][1]["ports"][0]["port"] == port["name"]


def test_in_production_the_driver_may_make_its_executors() -> None:
    binding, role = (_named(PRODUCTION, kind, "lockkeeper-driver") for kind in ("RoleBinding", "Role"))
    [subject] = binding["subjects"]
    assert (subject["kind"], subject["name"]) == ("ServiceAccount", "lockkeeper")
    assert subject["namespace"] == role["metadata"]["namespace"]
    [rule] = role["rules"]
    assert {"pods", "configmaps", "services"} <= set(rule["resources"])
    assert {"create", "delete", "watch"} <= set(rule["verbs"])
    assert _pod(PRODUCTION, "executorSpec")["metadata"]["labels"][NAME] == "lockkeeper"
