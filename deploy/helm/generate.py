"""Writes the chart's templates and schema from the Kubernetes manifests: `make chart`. With `--check`, compares.

A template is a manifest in which a few texts are replaced by values. A text must be there, and a value's default
must be what the manifest has: so neither can change without the other.
"""

import argparse
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
CHART = HERE / "lockkeeper"
BASE = HERE.parent / "kubernetes" / "base"
PRODUCTION = HERE.parent / "kubernetes" / "production"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
PRODUCTION_VALUES = yaml.safe_load((CHART / "values-production.yaml").read_text(encoding="utf-8"))

HEADER = "{{{{- /* Written by `make chart` from deploy/kubernetes/{sources}; do not edit. */ -}}}}\n"
EXECUTORS = ".Values.executors.instances"
SEPARATE_MONITOR = '(eq (dig "monitor" "mode" "" .Values.settings) "separate")'
CERTIFICATE = ("- {name: kafka-ca, mountPath: /etc/kafka-ca, readOnly: true}",)
CERTIFICATE_VOLUME = ("- {name: kafka-ca, secret: {secretName: {{ .Values.kafka.caSecret | quote }} }}",)

Edit = Callable[[str], str]


def replace(old: str, new: str, *, repeated: bool = False) -> Edit:
    """Replace a text that is there once, or with `repeated` in each topic or user."""

    def edit(text: str) -> str:
        count = text.count(old)
        if count != 1 and not (repeated and count):
            sys.exit(
                f"error: {old!r} is there {count} times: change deploy/helm/generate.py, or the default in values.yaml"
            )
        return text.replace(old, new)

    return edit


def put(pattern: str, path: str, *, repeated: bool = False) -> Edit:
    """Put a value where its default is, `@` in the pattern; texts are quoted, for YAML reads some as numbers."""
    value = look_up(VALUES, path)
    quoted = isinstance(value, str) and '"@"' not in pattern
    written = json.dumps(value) if quoted and value.isdigit() else str(value)
    expression = f"{{{{ .Values.{path}{' | quote' if quoted else ''} }}}}"
    return replace(pattern.replace("@", written), pattern.replace("@", expression), repeated=repeated)


def look_up(values: Any, path: str) -> Any:
    """A value by its path with dots."""
    for name in path.split("."):
        values = values[name]
    return values


def after(line: str, *block: str) -> Edit:
    """Put lines after the one that has this text, indented like it."""

    def edit(text: str) -> str:
        [(indent, rest)] = re.findall(rf"^( *){re.escape(line)}(.*)\n", text, re.MULTILINE)
        whole = f"{indent}{line}{rest}\n"
        return text.replace(whole, whole + "".join(f"{indent}{more}\n" for more in block))

    return edit


def when(condition: str, *lines: str) -> tuple[str, ...]:
    """Lines that are there if a condition holds."""
    return (f"{{{{- if {condition} }}}}", *lines, "{{- end }}")


def whole(condition: str) -> Edit:
    """The text is there if a condition holds."""
    return lambda text: "\n".join([*when(condition, text.rstrip()), ""])


def monitors(text: str) -> str:
    """ServiceMonitors are there if monitoring is enabled."""
    enabled = whole(".Values.monitoring.enabled")
    documents = text.split("---\n")
    return "---\n".join(enabled(each) if "\nkind: ServiceMonitor\n" in each else each for each in documents)


def label(text: str) -> str:
    """Add the labels of kustomization.yaml to each resource."""
    [labels] = yaml.safe_load((BASE / "kustomization.yaml").read_text(encoding="utf-8"))["labels"]
    pairs = ", ".join(f"{name}: {value}" for name, value in labels["pairs"].items())
    return "---\n".join(_labelled(document, pairs) for document in text.split("---\n"))


def _labelled(document: str, pairs: str) -> str:
    if "\nmetadata:\n" not in document:
        return document
    head, metadata, rest = re.split(r"(\nmetadata:\n(?:  .*\n?)+)", document, maxsplit=1)
    if "\n  labels: {" in metadata:
        metadata = metadata.replace("\n  labels: {", f"\n  labels: {{{pairs}, ", 1)
    elif "\n  labels:\n" in metadata:
        metadata = metadata.replace("\n  labels:\n", f"\n  labels:\n    {pairs}\n", 1)
    else:
        metadata += f"  labels: {{{pairs}}}\n"
    return head + metadata + rest


def protocol(prefix: str, location: str) -> Edit:
    """Kafka's protocol, as the settings of a client have it."""
    tls = f"{{{{ if .Values.kafka.tls }}}}SASL_SSL, {location}{{{{ else }}}}SASL_PLAINTEXT{{{{ end }}}}"
    return replace(f"{{{prefix}security.protocol: SASL_PLAINTEXT,", f"{{{prefix}security.protocol: {tls},")


LIBRDKAFKA = protocol("", "ssl.ca.location: /etc/kafka-ca/ca.crt")
JAVA = protocol("kafka.", "kafka.ssl.truststore.type: PEM, kafka.ssl.truststore.location: /etc/kafka-ca/ca.crt")
TLS = (
    after("volumeMounts:", *(f"  {line}" for line in when(".Values.kafka.tls", *CERTIFICATE))),
    after("volumes:", *(f"  {line}" for line in when(".Values.kafka.tls", *CERTIFICATE_VOLUME))),
)


def kafka_user(suffix: str = "") -> tuple[Edit, ...]:
    """The name of the Kafka user, which begins with `job_name`, as `lockkeeper topics manifest --users` writes it."""
    user = f'{{{{ include "lockkeeper.user" (print .Values.settings.job_name "{suffix}") }}}}'
    name = f"lockkeeper{suffix}"
    return (
        replace(f"secretKeyRef: {{name: {name}, key", f'secretKeyRef: {{name: "{user}", key', repeated=True),
        replace(f"sasl.username: {name},", f"sasl.username: {user},"),
    )


def of_all_pods(line: str, indent: str = "") -> Edit:
    """The values `pods`, after a line of the pod's spec; flow style needs no indentation."""
    blocks = (when(f".Values.pods.{name}", f"{name}: {{{{ toJson .Values.pods.{name} }}}}") for name in VALUES["pods"])
    return after(line, *(f"{indent}{each}" for block in blocks for each in block))


def merged_variables(path: str) -> Edit:
    """The variables of the manifest, with those of a value in place of the ones that they name again.

    The last edit of a template: the list becomes a definition before all conditions, for Helm has none within one.
    """

    def edit(text: str) -> str:
        [(block, indent, own)] = re.findall(r"(\n( *)env:\n((?:\2  .*\n)+))", text)
        name = f"lockkeeper.variables.{path.split('.')[0]}"
        both = f'(dict "own" (include "{name}" .) "more" .Values.{path})'
        used = f'{{{{- include "lockkeeper.variables" {both} | nindent {len(indent) + 2} }}}}'
        defined = f'{{{{- define "{name}" }}}}\n{textwrap.dedent(own)}{{{{- end }}}}\n'
        return defined + text.replace(block, f"\n{indent}env:\n{indent}  {used}\n")

    return edit


def executors() -> tuple[Edit, ...]:
    """What production/sparkapplication.yaml patches, if there are executors."""
    patch = yaml.safe_load((PRODUCTION / "sparkapplication.yaml").read_text(encoding="utf-8"))
    added = {operation["path"]: operation["value"] for operation in patch if operation["op"] == "add"}
    conf = [f"{path.rsplit('/', 1)[1]}: {json.dumps(value)}" for path, value in added.items() if "/sparkConf/" in path]
    tolerated = added["/spec/applicationTolerations/instanceConfig"]
    spec = yaml.safe_dump(added["/spec/executorSpec"], sort_keys=False, width=1000)
    return (
        after("spark.driver.memoryOverhead: ", *when(EXECUTORS, *conf)),
        *(put_executors(name) for name in ("instances", "cores", "memory", "memoryOverhead")),
        after("applicationTolerations:", *(f"  {line}" for line in when(EXECUTORS, *_instances(tolerated)))),
        lambda text: text + "\n".join(when(EXECUTORS, "  executorSpec:", *_executor(spec))) + "\n",
    )


def only_without_executors(text: str) -> str:
    """The driver decides by itself."""
    [line] = re.findall(r" *spark\.kubernetes\.driver\.master: .*\n", text)
    return replace(line, "\n".join([*when(f"not {EXECUTORS}", line.rstrip()), ""]))(text)


def volume_group(text: str) -> str:
    """The group that may write the checkpoint's volume, unless the platform chooses it."""
    line = f"fsGroup: {look_up(VALUES, 'checkpoint.fsGroup')}"
    [indent] = re.findall(rf"^( *){line}\n", text, re.MULTILINE)
    # int64: Helm writes numbers from a million on with an exponent.
    guarded = when(".Values.checkpoint.fsGroup", "fsGroup: {{ int64 .Values.checkpoint.fsGroup }}")
    return replace(f"{indent}{line}\n", "".join(f"{indent}{guarded_line}\n" for guarded_line in guarded))(text)


def put_executors(name: str) -> Edit:
    """A value of `executors` in Spark's settings: those of production, as the base has none."""
    value = PRODUCTION_VALUES["executors"].get(name, VALUES["executors"][name])
    line = f"spark.executor.{name}: "
    return replace(f'{line}"{value}"', f"{line}{{{{ .Values.executors.{name} | quote }}}}")


def _instances(tolerated: dict[str, int]) -> list[str]:
    if tolerated.pop("maxExecutors") != PRODUCTION_VALUES["executors"]["instances"]:
        sys.exit("error: instanceConfig and executors.instances of production differ")
    lines = [f"  {name}: {number}" for name, number in tolerated.items()]
    return ["instanceConfig:", *lines, f"  maxExecutors: {{{{ {EXECUTORS} }}}}"]


def _executor(spec: str) -> list[str]:
    lines = spec.splitlines()
    for number in reversed([number for number, line in enumerate(lines) if line.endswith("- name: kafka-ca")]):
        indent = " " * (len(lines[number]) - len(lines[number].lstrip()) + 2)
        end = next((n for n in range(number + 1, len(lines)) if not lines[n].startswith(indent)), len(lines))
        lines[number:end] = when(".Values.kafka.tls", *lines[number:end])
    named = replace("secretName: kafka-cluster-ca-cert", "secretName: {{ .Values.kafka.caSecret | quote }}")
    text = volume_group(of_all_pods("spec:", "  ")(named("\n".join(lines) + "\n")))
    return [f"    {line}" for line in text.splitlines()]


SETTINGS = """{{- $these := pick .Values.settings @NAMES@ | toJson -}}
{{- if or (and (or .Values.topics.create .Values.users.create) (ne $these `@BASE@`)) (and .Values.users.create @SEPARATE@) -}}
{{- fail "the topics and users of this chart are not those of these settings: set topics.create and users.create to false, and apply what `lockkeeper topics manifest` prints, with and without --users" -}}
{{- end -}}
{{- if and .Values.executors.instances (ne .Values.checkpoint.accessMode "ReadWriteMany") -}}
{{- fail "the driver and its executors write one checkpoint: with executors.instances, set checkpoint.accessMode to ReadWriteMany, and a checkpoint.storageClassName that has it" -}}
{{- end -}}
{{- if and .Values.serve.enabled .Values.serve.replicas (le (int .Values.serve.replicas) (int .Values.serve.minAvailable)) -}}
{{- fail "the disruption budget of serve would let no node be drained: set serve.minAvailable to less than serve.replicas" -}}
{{- end -}}
apiVersion: v1
kind: ConfigMap
metadata:
  name: lockkeeper
data:
  lockkeeper.yaml: |
    {{- toYaml .Values.settings | nindent 4 }}
"""  # noqa: E501
NAMES = ("job_name", "limits", "systems", "topics")  # the settings that decide which topics and users there are


def settings(text: str) -> str:
    """The settings' ConfigMap, in place of their file."""
    base = yaml.safe_load(text)
    if base != VALUES["settings"]:
        sys.exit("error: `settings` of values.yaml is not deploy/kubernetes/base/lockkeeper.yaml")
    these = json.dumps({name: base[name] for name in NAMES if name in base}, sort_keys=True, separators=(",", ":"))
    text = SETTINGS.replace("@SEPARATE@", SEPARATE_MONITOR)
    return text.replace("@NAMES@", " ".join(map(json.dumps, NAMES))).replace("@BASE@", these)


# Pods read the settings at their start, and Kubernetes starts none anew because a ConfigMap has changed.
RESTARTED = replace(
    "\n  template:\n    metadata:\n",
    "\n  template:\n    metadata:\n"
    "      annotations: {checksum/settings: {{ toJson .Values.settings | sha256sum | quote }}}\n",
)
IMAGE = put("image: @\n", "image")
# Helm would delete these resources when the chart is uninstalled or `create` becomes false, and Strimzi with them the
# topics' records and the users' passwords.
KEPT = replace("\nmetadata:\n", "\nmetadata:\n  annotations: {helm.sh/resource-policy: keep}\n", repeated=True)
# As `lockkeeper topics create` does: two of two replicas would stop all writes while one is away.
IN_SYNC = "    min.insync.replicas: '2'\n"
CLUSTER = "strimzi.io/cluster: @\n"
SERVERS = put("value: @\n", "kafka.bootstrapServers")
SCRAPERS = put("kubernetes.io/metadata.name: @}", "monitoring.namespace")

EDITS: dict[str, tuple[Edit, ...]] = {
    "topics.yaml": (
        put("partitions: @\n", "topics.partitions", repeated=True),
        put("replicas: @\n", "topics.replicas", repeated=True),
        put(CLUSTER, "kafka.cluster", repeated=True),
        replace(IN_SYNC, "\n".join([*when("ge (int .Values.topics.replicas) 3", IN_SYNC.rstrip()), ""]), repeated=True),
        KEPT,
        whole(".Values.topics.create"),
    ),
    "users.yaml": (put(CLUSTER, "kafka.cluster", repeated=True), KEPT, whole(".Values.users.create")),
    "serviceaccount.yaml": (),
    "checkpoint.yaml": (
        put("accessModes: [@]", "checkpoint.accessMode"),
        put("storage: @\n", "checkpoint.size"),
        after(
            "accessModes: ",
            "{{- with .Values.checkpoint.storageClassName }}",
            "storageClassName: {{ . | quote }}",
            "{{- end }}",
        ),
    ),
    "sparkapplication.yaml": (
        IMAGE,
        SERVERS,
        *kafka_user(),
        put("local[@,8]", "job.cores"),
        only_without_executors,
        put('spark.driver.cores: "@"', "job.cores"),
        put("spark.driver.memory: @\n", "job.memory"),
        put("spark.driver.memoryOverhead: @\n", "job.memoryOverhead"),
        LIBRDKAFKA,
        JAVA,
        *TLS,
        volume_group,
        of_all_pods("terminationGracePeriodSeconds: 60"),
        *executors(),
        merged_variables("job.env"),
    ),
    "service.yaml": (),
    "servicemonitor.yaml": (monitors,),
    "networkpolicy.yaml": (SCRAPERS,),
    "serve.yaml": (
        RESTARTED,
        IMAGE,
        SERVERS,
        *kafka_user("-serve"),
        put("\n  replicas: @\n", "serve.replicas"),
        put("minAvailable: @\n", "serve.minAvailable"),
        put('LOCKKEEPER_SERVE_URL, value: "@"', "serve.url"),
        put("secret: {secretName: @}", "serve.tlsSecret"),
        put("secret: {secretName: @}", "serve.callersSecret"),
        put('requests: {cpu: "@"', "serve.cpu"),
        put(", memory: @}", "serve.memory"),
        put("limits: {memory: @}", "serve.memoryLimit"),
        LIBRDKAFKA,
        *TLS,
        of_all_pods("automountServiceAccountToken: false"),
        monitors,
        SCRAPERS,
        whole(".Values.serve.enabled"),
        merged_variables("serve.env"),
    ),
    "access-changes.yaml": (
        RESTARTED,
        IMAGE,
        SERVERS,
        *kafka_user("-access-changes"),
        put("requests: {cpu: @,", "accessChanges.cpu"),
        put(", memory: @}", "accessChanges.memory"),
        put("limits: {memory: @}", "accessChanges.memoryLimit"),
        LIBRDKAFKA,
        *TLS,
        of_all_pods("automountServiceAccountToken: false"),
        monitors,
        SCRAPERS,
        whole(".Values.accessChanges.enabled"),
        merged_variables("accessChanges.env"),
    ),
    "console.yaml": (
        RESTARTED,
        IMAGE,
        SERVERS,
        *kafka_user("-console"),
        put("secretKeyRef: {name: @, key", "console.signInSecret", repeated=True),
        put("secret: {secretName: @, items", "console.signInSecret"),
        put("kubernetes.io/metadata.name: @}", "console.ingressNamespace"),
        put("requests: {cpu: @", "console.cpu"),
        put(", memory: @}", "console.memory"),
        put("limits: {memory: @}", "console.memoryLimit"),
        LIBRDKAFKA,
        *TLS,
        of_all_pods("automountServiceAccountToken: false"),
        whole(".Values.console.enabled"),
        merged_variables("console.env"),
    ),
    "lockkeeper.yaml": (settings,),
}


MONITOR = ("checkpoint.yaml", "sparkapplication.yaml", "service.yaml", "servicemonitor.yaml", "networkpolicy.yaml")
MONITOR_COMMENT = "# The monitor as an application of its own: `lockkeeper monitor`.\n"
MONITOR_EDITS = (
    replace("driverArgs: [run,", "driverArgs: [monitor,"),
    put("local[@,8]", "monitor.cores"),
    put('spark.driver.cores: "@"', "monitor.cores"),
    put("spark.driver.memory: @\n", "monitor.memory"),
    put("spark.driver.memoryOverhead: @\n", "monitor.memoryOverhead"),
    IMAGE,
    SERVERS,
    *kafka_user("-monitor"),
    LIBRDKAFKA,
    JAVA,
    *TLS,
    volume_group,
    of_all_pods("terminationGracePeriodSeconds: 60"),
    *EDITS["checkpoint.yaml"],
    monitors,
    SCRAPERS,
    whole(SEPARATE_MONITOR),
    merged_variables("monitor.env"),
)


def monitor() -> str:
    """What the job has, for the monitor: its names, Kafka user and volume are those of the job with `-monitor`."""
    texts = (re.sub(r"\A(#.*\n)+", "", (BASE / name).read_text(encoding="utf-8")) for name in MONITOR)
    text = MONITOR_COMMENT + "---\n".join(texts)
    text = re.sub(r"(?<!configMap: \{)(name: lockkeeper)(?=[\n,}])", r"\1-monitor", text)
    text = text.replace("lockkeeper-checkpoint", "lockkeeper-monitor-checkpoint")
    for edit in MONITOR_EDITS:
        text = edit(text)
    return HEADER.format(sources=f"base: {', '.join(MONITOR)}") + label(text)


def templates() -> Iterator[tuple[str, str]]:
    """The name and text of each template."""
    for name, edits in EDITS.items():
        text = (BASE / name).read_text(encoding="utf-8")
        for edit in edits:
            text = edit(text)
        yield name, HEADER.format(sources=f"base/{name}") + label(text)
    yield "monitor.yaml", monitor()
    rights = replace("    name: lockkeeper\n", "    name: lockkeeper\n    namespace: {{ .Release.Namespace }}\n")
    text = rights((PRODUCTION / "executors.yaml").read_text(encoding="utf-8"))
    yield "executors.yaml", HEADER.format(sources="production/executors.yaml") + whole(EXECUTORS)(text)


def schema(value: Any) -> dict[str, Any]:
    """The schema of a value like this one, so that a misspelt name or a number as text is an error."""
    if isinstance(value, dict):
        properties = {name: schema(inner) for name, inner in value.items()}
        return {"type": "object", "properties": properties, "additionalProperties": False}
    if isinstance(value, list):
        properties = {name: {"type": "string"} for name in ("name", "value")}
        return {"type": "array", "items": {"type": "object", "required": ["name"], "properties": properties}}
    if isinstance(value, bool):
        return {"type": "boolean"}
    return {"type": "integer", "minimum": min(value, 1)} if isinstance(value, int) else {"type": "string"}


# Kubernetes takes no 2g, and Spark no 2Gi; each says so when the pod is made, not before.
QUANTITY = r"^[0-9]+(\.[0-9]+)?([numkMGTPE]|[KMGTPE]i)?$"
SPARK_SIZE = "^[0-9]+([kmgtKMGT][bB]?)?$"


def values_schema() -> str:
    """The schema of values.yaml. Settings are checked by lockkeeper itself, when it starts."""
    whole = {"$schema": "http://json-schema.org/draft-07/schema#", **schema(VALUES)}
    whole["properties"] |= {"settings": {"type": "object"}, "global": {"type": "object"}}
    of = {name: part["properties"] for name, part in whole["properties"].items() if "properties" in part}
    of["checkpoint"]["accessMode"] = {"enum": ["ReadWriteOnce", "ReadWriteOncePod", "ReadWriteMany"]}
    of["checkpoint"]["size"]["pattern"] = QUANTITY
    for part, name in (("serve", "replicas"), ("serve", "minAvailable"), ("checkpoint", "fsGroup")):
        of[part][name]["minimum"] = 0
    of["pods"]["nodeSelector"] = {"type": "object", "additionalProperties": {"type": "string"}}
    of["pods"]["tolerations"]["items"] = {"type": "object"}
    for part in ("job", "executors", "monitor"):
        for name in ("memory", "memoryOverhead"):
            of[part][name]["pattern"] = SPARK_SIZE
    for part in ("serve", "accessChanges", "console"):
        of[part]["cpu"] = {"type": ["string", "number"], "pattern": QUANTITY}
        for name in ("memory", "memoryLimit"):
            of[part][name]["pattern"] = QUANTITY
    return json.dumps(whole, indent=2) + "\n"


def main() -> None:
    """Write the chart's files, or compare them."""
    parser = argparse.ArgumentParser(description="Write the chart's templates and its schema.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file differs")
    check, folder = parser.parse_args().check, CHART / "templates"
    written = {folder / name: text for name, text in templates()} | {CHART / "values.schema.json": values_schema()}
    present = {path: path.read_text(encoding="utf-8") for path in [*folder.glob("*.yaml"), *CHART.glob("*.json")]}
    if check and present != written:
        differ = sorted(path.name for path in {*written, *present} if written.get(path) != present.get(path))
        sys.exit(f"error: not what the manifests give: {', '.join(differ)}; run `make chart`")
    for path, text in written.items() if not check else ():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
