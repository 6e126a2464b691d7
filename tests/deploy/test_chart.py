"""The Helm chart: its default values give deploy/kubernetes/base, those of production deploy/kubernetes/production."""

import copy
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from streaming.settings import load_settings
from tests.cli.lockkeeper import Command
from tests.deploy.files import DEPLOY, ROOT, read_yaml
from tests.deploy.kustomize import Resource, build, key
from tests.deploy.schemas import SCHEMAS
from tests.docs.pages import PAGES, blocks

CHART = DEPLOY / "helm" / "lockkeeper"
GENERATE = DEPLOY / "helm" / "generate.py"
KUBERNETES = DEPLOY / "kubernetes"
PRODUCTION = ["--values", str(CHART / "values-production.yaml")]

KEPT = ("KafkaTopic", "KafkaUser")

Template = Callable[..., dict[tuple[str, str], Resource]]


def _helm(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["helm", *arguments], capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module", autouse=True)
def _where_helm_keeps_files(tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("CACHE", "CONFIG", "DATA"):
            patch.setenv(f"HELM_{name}_HOME", str(tmp_path_factory.mktemp("helm")))


@pytest.fixture
def template() -> Template:
    """The resources that `helm template` shows, by kind and name."""
    if shutil.which("helm") is None:
        pytest.skip("helm is not on this machine; tests/deploy/helm.sh builds it with Go")

    def shown(*options: str) -> dict[tuple[str, str], Resource]:
        done = _helm("template", "lockkeeper", str(CHART), "--namespace", "kafka", *options)
        assert done.returncode == 0, done.stderr
        resources = [resource for resource in yaml.safe_load_all(done.stdout) if resource]
        assert len({key(resource) for resource in resources}) == len(resources)
        return {key(resource): resource for resource in resources}

    return shown


def _comparable(resource: Any) -> Any:
    """Without what differs and means the same: the namespace, the order of mounts, blanks within settings, comments."""
    if isinstance(resource, dict):
        return {
            name: _comparable(_without_order(name, value)) for name, value in resource.items() if name != "namespace"
        }
    if isinstance(resource, list):
        return [_comparable(value) for value in resource]
    if isinstance(resource, str) and ("\n" in resource or resource.startswith("{")):
        return yaml.safe_load(resource)
    return resource


def _without_order(name: str, value: Any) -> Any:
    return sorted(value, key=lambda item: item["name"]) if name in ("volumes", "volumeMounts") else value


def _of_kustomize(folder: str) -> dict[tuple[str, str], Resource]:
    return {key(resource): _comparable(resource) for resource in build(KUBERNETES / folder)}


@pytest.mark.parametrize(("folder", "options"), [("base", []), ("production", PRODUCTION)], ids=["base", "production"])
def test_the_chart_gives_the_manifests(folder: str, options: list[str], template: Template) -> None:
    shown, wanted = template(*options), _of_kustomize(folder)
    assert shown.keys() == wanted.keys()
    for name, resource in shown.items():
        jsonschema.Draft202012Validator(SCHEMAS[resource["kind"]]).validate(resource)
        if resource["kind"] == "Deployment":
            del resource["spec"]["template"]["metadata"]["annotations"]
        if resource["kind"] in KEPT:
            del resource["metadata"]["annotations"]
        assert _comparable(resource) == wanted[name], name


def test_helm_deletes_no_topic_and_no_user(template: Template) -> None:
    """Strimzi would delete all records with them. The chart itself asks for `topics.create=false` with other topics."""
    shown = template()
    kept = {name for name, r in shown.items() if "helm.sh/resource-policy" in r["metadata"].get("annotations", {})}
    assert kept == {name for name in shown if name[0] in KEPT}
    assert {shown[name]["metadata"]["annotations"]["helm.sh/resource-policy"] for name in kept} == {"keep"}


def test_where_the_platform_chooses_users_and_groups_no_pod_names_one(template: Template) -> None:
    """OpenShift refuses a pod with an id that is not in the namespace's range."""
    separate = "settings.monitor.mode=separate,topics.create=false,users.create=false"

    def ids(*options: str) -> dict[str, int]:
        shown = template(*PRODUCTION, "--set", separate, *options)
        assert ("SparkApplication", "lockkeeper-monitor") in shown
        written = json.dumps(list(shown.values()))
        return {name: int(number) for name, number in re.findall(r'"(runAs\w+|fsGroup)": (\d+)', written)}

    assert ids("--set", "checkpoint.fsGroup=0") == {}
    assert ids("--set", "checkpoint.fsGroup=1000680000") == {"fsGroup": 1000680000}


def test_a_change_of_the_settings_starts_the_deployments_anew(template: Template) -> None:
    """They read the settings at their start: a trust that was taken away would go on to count."""

    def pods(*options: str) -> dict[str, Any]:
        shown = template(*options)
        return {name: shown[kind, name]["spec"]["template"] for kind, name in shown if kind == "Deployment"}

    before, again = pods(), pods("--set", "serve.replicas=5")
    other = pods("--set-json", 'settings.trust={"authz.requests.v1":[]}')
    assert len(before) == 3
    assert again == before
    assert all(other[name] != pod for name, pod in before.items())


def test_the_chart_is_what_the_manifests_give() -> None:
    done = subprocess.run([sys.executable, str(GENERATE), "--check"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert str(GENERATE.relative_to(ROOT)) in (ROOT / "Makefile").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("file", "was", "becomes", "error"),
    [
        ("kubernetes/base/serve.yaml", 'cpu: "1"', 'cpu: "2"', "change deploy/helm/generate.py"),
        ("kubernetes/base/serve.yaml", "periodSeconds: 2\n", "periodSeconds: 3\n", "serve.yaml; run `make chart`"),
        ("kubernetes/base/console.yaml", "cpu: 250m", "cpu: 300m", "change deploy/helm/generate.py"),
        ("kubernetes/base/lockkeeper.yaml", "job_name: lockkeeper", "job_name: other", "`settings` of values.yaml"),
        ("kubernetes/production/sparkapplication.yaml", "maxExecutors: 3", "maxExecutors: 4", "instanceConfig"),
        ("helm/lockkeeper/values.yaml", "partitions: 6", "partitions: 7", "change deploy/helm/generate.py"),
        ("helm/lockkeeper/templates/service.yaml", "port: 9464", "port: 9465", "service.yaml; run `make chart`"),
    ],
)
def test_a_change_of_one_without_the_other_is_an_error(
    file: str, was: str, becomes: str, error: str, tmp_path: Path
) -> None:
    for folder in ("helm", "kubernetes"):
        shutil.copytree(DEPLOY / folder, tmp_path / folder)
    text = (tmp_path / file).read_text(encoding="utf-8")
    assert was in text
    (tmp_path / file).write_text(text.replace(was, becomes), encoding="utf-8")
    command = [sys.executable, str(tmp_path / "helm" / "generate.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert error in done.stderr


def test_the_schema_has_the_values_and_refuses_mistakes() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    validator = jsonschema.Draft7Validator(schema)
    values = read_yaml(CHART / "values.yaml")
    validator.validate(values)
    validator.validate(read_yaml(CHART / "values-production.yaml"))
    for path, wrong in (
        ("serve", {"replica": 3}),
        ("console", {"enabled": "yes"}),
        ("topics", {"partitions": "6"}),
        ("checkpoint", {"accessMode": "RWX"}),
        ("topics", {"partitions": 0}),
        ("job", {"memory": "2Gi"}),
        ("serve", {"memory": "2g"}),
        ("serve", {"env": [{"name": "LOCKKEEPER_SERVE_DRAIN_SECONDS", "value": 7}]}),
        ("pods", {"nodeSelector": {"pool": True}}),
    ):
        changed = copy.deepcopy(values)
        changed[path] |= wrong
        with pytest.raises(jsonschema.ValidationError):
            validator.validate(changed)


def test_values_reach_what_they_are_of(template: Template) -> None:
    shown = template(
        *(
            "--set",
            "kafka.cluster=events,kafka.bootstrapServers=events-kafka-bootstrap:9092,image=registry/lockkeeper:1",
        ),
        *("--set", "job.cores=2,job.env[0].name=LOCKKEEPER_LOG_LEVEL,job.env[0].value=debug,settings.max_records=5000"),
        *("--set", "monitoring.namespace=observability,checkpoint.storageClassName=fast,serve.tlsSecret=certificate"),
        *("--set", "console.signInSecret=signing,console.ingressNamespace=edge,console.memoryLimit=8Gi"),
    )
    clusters = {r["metadata"]["labels"]["strimzi.io/cluster"] for r in shown.values() if "strimzi" in r["apiVersion"]}
    assert clusters == {"events"}
    spec = shown["SparkApplication", "lockkeeper"]["spec"]
    assert spec["sparkConf"]["spark.kubernetes.container.image"] == "registry/lockkeeper:1"
    assert spec["sparkConf"]["spark.kubernetes.driver.master"] == "local[2,8]"
    [driver] = spec["driverSpec"]["podTemplateSpec"]["spec"]["containers"]
    assert {"name": "LOCKKEEPER_LOG_LEVEL", "value": "debug"} in driver["env"]
    assert {"name": "LOCKKEEPER_BOOTSTRAP_SERVERS", "value": "events-kafka-bootstrap:9092"} in driver["env"]
    [[_, settings]] = shown["ConfigMap", "lockkeeper"]["data"].items()
    assert yaml.safe_load(settings) == {**read_yaml(KUBERNETES / "base" / "lockkeeper.yaml"), "max_records": 5000}
    assert shown["PersistentVolumeClaim", "lockkeeper-checkpoint"]["spec"]["storageClassName"] == "fast"
    assert "certificate" in json.dumps(shown["Deployment", "lockkeeper-serve"])
    console = json.dumps(shown["Deployment", "lockkeeper-console"])
    assert "lockkeeper-console-sign-in" not in console
    assert console.count('"signing"') == 5
    assert "8Gi" in console
    assert "edge" in json.dumps(shown["NetworkPolicy", "lockkeeper-console"])
    for name in ("lockkeeper", "lockkeeper-serve", "lockkeeper-access-changes"):
        assert "observability" in json.dumps(shown["NetworkPolicy", name])


def test_a_variable_that_is_given_again_takes_the_place_of_the_charts(template: Template) -> None:
    """Twice in a list, Kubernetes keeps either with the next change, or refuses both (server-side apply)."""
    again = {"name": "LOCKKEEPER_METRICS_ADDRESS", "value": "127.0.0.1"}
    password = {"name": "KAFKA_PASSWORD", "valueFrom": {"secretKeyRef": {"name": "own", "key": "p"}}}
    added = {"name": "LOCKKEEPER_LOG_LEVEL", "value": "debug"}
    values = [
        f"{part}.env={json.dumps([added, again, password])}" for part in ("job", "monitor", "serve", "accessChanges")
    ]
    console = json.dumps([added, {**again, "name": "LOCKKEEPER_CONSOLE_ADDRESS"}, password])
    separate = "settings.monitor.mode=separate,topics.create=false,users.create=false"
    options = [word for value in (*values, f"console.env={console}") for word in ("--set-json", value)]
    shown, plain = template("--set", separate, *options), template("--set", separate)
    for name, resource in shown.items():
        if name[0] not in ("Deployment", "SparkApplication"):
            continue
        variables, own = _variables(resource), _variables(plain[name])
        names = [each["name"] for each in variables]
        assert names == [*(each["name"] for each in own), added["name"]], (
            "in the chart's order: some refer to earlier ones"
        )
        differ = [each for each in variables if each not in own]
        assert [password, added] == [each for each in differ if each["name"] in (password["name"], added["name"])]
        assert "127.0.0.1" in json.dumps(differ)


def _variables(resource: Resource) -> list[dict[str, Any]]:
    spec = resource["spec"]
    template_of_pod = spec["template"] if "template" in spec else spec["driverSpec"]["podTemplateSpec"]
    [container] = template_of_pod["spec"]["containers"]
    variables: list[dict[str, Any]] = container["env"]
    return variables


def test_parts_can_be_left_out(template: Template) -> None:
    whole = template()
    without = (
        "topics.create",
        "users.create",
        "serve.enabled",
        "console.enabled",
        "accessChanges.enabled",
        "monitoring.enabled",
    )
    rest = template("--set", ",".join(f"{name}=false" for name in without))
    kinds = {kind for kind, _ in rest}
    assert kinds == {kind for kind, _ in whole} - {
        *("KafkaTopic", "KafkaUser", "ServiceMonitor", "Deployment", "PodDisruptionBudget")
    }
    left_out = ("lockkeeper-serve", "lockkeeper-access-changes", "lockkeeper-console")
    assert not [name for _, name in rest if name in left_out]


def test_values_of_all_pods_are_in_each(template: Template) -> None:
    pods = {
        "imagePullSecrets": [{"name": "registry"}],
        "nodeSelector": {"pool": "streaming", "zone": "1"},
        "tolerations": [{"key": "dedicated", "operator": "Equal", "value": "authz", "effect": "NoSchedule"}],
    }
    shown = template(*PRODUCTION, "--set-json", f"pods={json.dumps(pods)}")
    specs = [r["spec"]["template"]["spec"] for (kind, _), r in shown.items() if kind == "Deployment"]
    application = shown["SparkApplication", "lockkeeper"]["spec"]
    specs += [application[part]["podTemplateSpec"]["spec"] for part in ("driverSpec", "executorSpec")]
    assert len(specs) == 5
    for spec in specs:
        assert {name: spec[name] for name in pods} == pods
    for resource in shown.values():
        jsonschema.Draft202012Validator(SCHEMAS[resource["kind"]]).validate(resource)


def test_texts_that_yaml_reads_as_numbers_stay_texts(template: Template) -> None:
    named = ("serve.tlsSecret", "serve.callersSecret", "console.signInSecret", "kafka.caSecret", "monitoring.namespace")
    texts = [f"{name}={number}" for number, name in enumerate((*named, "console.ingressNamespace"), 1001)]
    shown = template("--set", "kafka.tls=true,serve.cpu=2", "--set-string", ",".join(texts))
    for resource in shown.values():
        jsonschema.Draft202012Validator(SCHEMAS[resource["kind"]]).validate(resource)
    written = json.dumps(list(shown.values()))
    for text in texts:
        number = text.split("=")[1]
        assert f'"{number}"' in written
        assert f": {number}" not in written


@pytest.mark.parametrize("replicas", [1, 2, 5])
def test_topics_of_other_replicas_are_those_that_the_command_writes(
    replicas: int, template: Template, lockkeeper: Command
) -> None:
    """Two of two replicas in sync would stop all writes while one broker is away."""
    shown = template("--set", f"topics.replicas={replicas}")
    config = str(KUBERNETES / "base" / "lockkeeper.yaml")
    written = lockkeeper("topics", "manifest", "--config", config, "--replication", str(replicas)).out
    for topic in filter(None, yaml.safe_load_all(written)):
        assert shown[key(topic)]["spec"] == topic["spec"]


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ("executors.instances=2", "checkpoint.accessMode"),
        ("executors.instances=2,checkpoint.accessMode=ReadWriteOncePod", "checkpoint.accessMode"),
        ("serve.replicas=1", "serve.minAvailable"),
        ("serve.replicas=3,serve.minAvailable=3", "serve.minAvailable"),
    ],
)
@pytest.mark.usefixtures("template")
def test_values_with_which_pods_could_not_start_or_move_are_refused(values: str, error: str) -> None:
    done = _helm("template", "lockkeeper", str(CHART), "--set", values)
    assert done.returncode != 0
    assert error in done.stderr


def test_a_single_replica_of_the_server_may_be_drained(template: Template) -> None:
    shown = template("--set", "serve.replicas=1,serve.minAvailable=0")
    assert shown["PodDisruptionBudget", "lockkeeper-serve"]["spec"]["minAvailable"] == 0
    template("--set", "serve.replicas=0")


@pytest.mark.parametrize(
    "other",
    [
        "settings.job_name=other",
        "settings.topics.requests[0]=asked",
        "settings.limits.record_out=500000",
        "settings.systems[0]=lenses6",
        "settings.monitor.mode=separate",
    ],
)
def test_topics_and_users_of_other_settings_are_refused(other: str, template: Template) -> None:
    done = _helm("template", "lockkeeper", str(CHART), "--set", other)
    assert done.returncode != 0
    assert "lockkeeper topics manifest" in done.stderr
    without = template("--set", f"{other},topics.create=false,users.create=false")
    [[_, settings]] = without["ConfigMap", "lockkeeper"]["data"].items()
    assert settings != template()["ConfigMap", "lockkeeper"]["data"]["lockkeeper.yaml"]


@pytest.mark.parametrize("job_name", ["other", "Payments_Authz", "Payments_", "pay._ments"])
def test_pods_of_another_job_name_have_the_users_of_its_manifests(
    job_name: str, template: Template, lockkeeper: Command, tmp_path: Path
) -> None:
    settings = {**read_yaml(CHART / "values.yaml")["settings"], "job_name": job_name}
    (tmp_path / "lockkeeper.yaml").write_text(yaml.safe_dump(settings))
    written = lockkeeper("topics", "manifest", "--users", "--config", str(tmp_path / "lockkeeper.yaml")).out
    users = {user["metadata"]["name"] for user in filter(None, yaml.safe_load_all(written))}
    shown = template("--set", f"settings.job_name={job_name},topics.create=false,users.create=false")
    specs = [r["spec"]["template"]["spec"] for (kind, _), r in shown.items() if kind == "Deployment"]
    specs.append(shown["SparkApplication", "lockkeeper"]["spec"]["driverSpec"]["podTemplateSpec"]["spec"])
    for spec in specs:
        variables = {each["name"]: each for each in spec["containers"][0]["env"]}
        secret = variables["KAFKA_PASSWORD"]["valueFrom"]["secretKeyRef"]["name"]
        assert secret in users
        assert yaml.safe_load(variables["LOCKKEEPER_KAFKA"]["value"])["sasl.username"] == secret


@pytest.mark.parametrize("options", [[], PRODUCTION], ids=["base", "production"])
def test_a_separate_monitor_is_an_application_of_its_own(
    options: list[str], template: Template, lockkeeper: Command, tmp_path: Path
) -> None:
    separate = "settings.monitor.mode=separate,topics.create=false,users.create=false,monitor.cores=2"
    shown, without = template(*options, "--set", separate), template(*options)
    added = shown.keys() - without.keys()
    kinds = ("SparkApplication", "Service", "ServiceMonitor", "NetworkPolicy")
    assert added == {("PersistentVolumeClaim", "lockkeeper-monitor-checkpoint")} | {
        (kind, "lockkeeper-monitor") for kind in kinds
    }
    for resource in shown.values():
        jsonschema.Draft202012Validator(SCHEMAS[resource["kind"]]).validate(resource)
    application, service, scraped, network = (shown[kind, "lockkeeper-monitor"] for kind in kinds)
    assert application["spec"]["driverArgs"] == ["monitor", "--config", "/etc/lockkeeper/lockkeeper.yaml"]
    assert application["spec"]["sparkConf"]["spark.kubernetes.driver.master"] == "local[2,8]"
    assert "executorSpec" not in application["spec"]
    template_of_pod = application["spec"]["driverSpec"]["podTemplateSpec"]
    labels, pod = template_of_pod["metadata"]["labels"], template_of_pod["spec"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert network["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    assert scraped["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert service["metadata"]["labels"][scraped["spec"]["jobLabel"]] == "lockkeeper-monitor"  # as the rules select it
    [job] = [r for (kind, name), r in shown.items() if (kind, name) == ("Service", "lockkeeper")]
    assert not job["spec"]["selector"].items() <= labels.items()
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["checkpoint"]["persistentVolumeClaim"]["claimName"] == "lockkeeper-monitor-checkpoint"
    assert volumes["settings"]["configMap"]["name"] == "lockkeeper"
    config = tmp_path / "lockkeeper.yaml"
    config.write_text(shown["ConfigMap", "lockkeeper"]["data"]["lockkeeper.yaml"])
    written = lockkeeper("topics", "manifest", "--users", "--config", str(config)).out
    users = {user["metadata"]["name"] for user in filter(None, yaml.safe_load_all(written))}
    variables = {each["name"]: each for each in pod["containers"][0]["env"]}
    for name in ("KAFKA_PASSWORD", "KAFKA_LOGIN"):
        assert variables[name]["valueFrom"]["secretKeyRef"]["name"] == "lockkeeper-monitor"
    kafka = yaml.safe_load(variables["LOCKKEEPER_KAFKA"]["value"])
    assert kafka["sasl.username"] == "lockkeeper-monitor"
    assert "lockkeeper-monitor" in users
    assert kafka["security.protocol"] == ("SASL_SSL" if options else "SASL_PLAINTEXT")


@pytest.mark.usefixtures("template")
@pytest.mark.parametrize(("wanted", "shown"), [("install", "lockkeeper-serve"), ("template", "lockkeeper-monitor")])
def test_the_commands_of_the_guide_are_taken(wanted: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    commands = [command.text for block in blocks(PAGES / "guides/deploy.md") for command in block.commands]
    [words] = [shlex.split(text)[1:] for text in commands if text.startswith(f"helm {wanted} ")]
    done = _helm("template", *words[1:])
    assert done.returncode == 0, done.stderr
    assert f"name: {shown}\n" in done.stdout


def test_the_guide_starts_all_anew_that_read_the_settings(template: Template) -> None:
    """A separate monitor went on with the settings of before."""
    commands = [command.text for block in blocks(PAGES / "guides/deploy.md") for command in block.commands]
    [restarted] = [
        shlex.split(text)[4:-2] for text in commands if text.startswith("kubectl rollout restart deployment ")
    ]
    [deleted] = [shlex.split(text)[-1] for text in commands if text.startswith("kubectl delete pod ")]
    [(names, component)] = re.findall(
        r"^app.kubernetes.io/name in \((.+)\),app.kubernetes.io/component=(\w+)$", deleted
    )
    shown = template("--set", "settings.monitor.mode=separate,topics.create=false,users.create=false")
    assert sorted(restarted) == sorted(name for kind, name in shown if kind == "Deployment")
    drivers = [
        r["spec"]["driverSpec"]["podTemplateSpec"] for (kind, _), r in shown.items() if kind == "SparkApplication"
    ]
    labels = [driver["metadata"]["labels"] for driver in drivers]
    assert {each["app.kubernetes.io/component"] for each in labels} == {component}
    assert sorted(names.split(",")) == sorted(each["app.kubernetes.io/name"] for each in labels)
    assert deleted in (CHART / "templates" / "NOTES.txt").read_text(encoding="utf-8")  # after an upgrade


@pytest.mark.usefixtures("template")
def test_helm_lints_it() -> None:
    for options in ([], PRODUCTION):
        done = _helm("lint", "--strict", str(CHART), *options)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_settings_are_settings(tmp_path: Path) -> None:
    (tmp_path / "lockkeeper.yaml").write_text(yaml.safe_dump(read_yaml(CHART / "values.yaml")["settings"]))
    assert load_settings(tmp_path / "lockkeeper.yaml", {}) == load_settings(KUBERNETES / "base" / "lockkeeper.yaml", {})
