"""The shape of the resources that are deployed, as far as they are used: fields, types and choices of their APIs.

Stricter than the APIs where that finds mistakes: a field that is not listed is one, as no server would report it.
Not from a library: kubernetes-validate has the schemas of all versions (22 MB in 17,000 files), and none of the custom
resources, which are half of what is here.
"""

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string", "minLength": 1}
COUNT: Schema = {"type": "integer", "minimum": 0}
FLAG: Schema = {"type": "boolean"}
TEXTS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}  # no numbers: a server refuses them
PORT: Schema = {"oneOf": [{"type": "integer", "minimum": 1, "maximum": 65535}, TEXT]}
NAME = r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$"


def record(required: str = "", **fields: Schema) -> Schema:
    """A mapping with these fields and no others."""
    return {
        "type": "object",
        "properties": fields,
        "required": required.split(),
        "additionalProperties": False,
    }


def each(schema: Schema) -> Schema:
    """A list of at least one."""
    return {"type": "array", "items": schema, "minItems": 1}


def one_of(*values: str) -> Schema:
    """A text with a few choices."""
    return {"enum": list(values)}


METADATA = record("name", name={"type": "string", "pattern": NAME}, namespace=TEXT, labels=TEXTS, annotations=TEXTS)
LABELLED = record(labels=TEXTS, annotations=TEXTS)
SELECTOR = record(matchLabels=TEXTS)


def resource(api: str, required: str = "spec", **fields: Schema) -> Schema:
    """A resource of one API version."""
    return record(
        f"apiVersion kind metadata {required}", apiVersion={"const": api}, kind=TEXT, metadata=METADATA, **fields
    )


KEY_OF_SECRET = record("secretKeyRef", secretKeyRef=record("name key", name=TEXT, key=TEXT, optional=FLAG))
VARIABLE = {
    "oneOf": [
        record("name value", name=TEXT, value={"type": "string"}),
        record("name valueFrom", name=TEXT, valueFrom=KEY_OF_SECRET),
    ]
}
PROBE = record(
    "httpGet",
    httpGet=record(
        "path port",
        path={"type": "string", "pattern": "^/"},
        port=PORT,
        httpHeaders=each(record("name value", name=TEXT, value=TEXT)),
    ),
    periodSeconds=COUNT,
    failureThreshold=COUNT,
    timeoutSeconds=COUNT,
    initialDelaySeconds=COUNT,
)
CONTAINER = record(
    "name",
    name=TEXT,
    image=TEXT,
    args=each(TEXT),
    resources=record(requests=TEXTS, limits=TEXTS),
    env=each(VARIABLE),
    ports=each(record("containerPort", name=TEXT, containerPort=COUNT, protocol=one_of("TCP", "UDP"))),
    startupProbe=PROBE,
    livenessProbe=PROBE,
    readinessProbe=PROBE,
    securityContext=record(
        allowPrivilegeEscalation=FLAG, capabilities=record(drop=each(TEXT)), readOnlyRootFilesystem=FLAG
    ),
    volumeMounts=each(record("name mountPath", name=TEXT, mountPath=TEXT, readOnly=FLAG, subPath=TEXT)),
)
ITEM = record("key path", key=TEXT, path=TEXT)
VOLUME = {
    "oneOf": [
        record("name configMap", name=TEXT, configMap=record("name", name=TEXT)),
        record("name secret", name=TEXT, secret=record("secretName", secretName=TEXT, items=each(ITEM))),
        record("name emptyDir", name=TEXT, emptyDir=record()),
        record("name persistentVolumeClaim", name=TEXT, persistentVolumeClaim=record("claimName", claimName=TEXT)),
    ]
}
SPREAD = record(
    "maxSkew topologyKey whenUnsatisfiable",
    maxSkew=COUNT,
    topologyKey=TEXT,
    whenUnsatisfiable=one_of("DoNotSchedule", "ScheduleAnyway"),
    labelSelector=SELECTOR,
)
TOLERATION = record(
    key=TEXT,
    operator=one_of("Exists", "Equal"),
    value=TEXT,
    effect=one_of("NoSchedule", "PreferNoSchedule", "NoExecute"),
)
POD = record(
    "containers",
    automountServiceAccountToken=FLAG,
    securityContext=record(
        runAsNonRoot=FLAG,
        runAsUser=COUNT,
        runAsGroup=COUNT,
        fsGroup=COUNT,
        seccompProfile=record("type", type=one_of("RuntimeDefault", "Localhost", "Unconfined")),
    ),
    terminationGracePeriodSeconds=COUNT,
    topologySpreadConstraints=each(SPREAD),
    imagePullSecrets=each(record("name", name=TEXT)),
    nodeSelector=TEXTS,
    tolerations=each(TOLERATION),
    containers=each(CONTAINER),
    volumes=each(VOLUME),
)
TEMPLATE = record("podTemplateSpec", podTemplateSpec=record("spec", metadata=LABELLED, spec=POD))

SPARK_APPLICATION = resource(
    "spark.apache.org/v1",
    spec=record(
        "runtimeVersions",
        mainClass=TEXT,
        pyFiles=TEXT,
        driverArgs=each(TEXT),
        deploymentMode=one_of("ClusterMode", "ClientMode"),
        runtimeVersions=record("sparkVersion", sparkVersion=TEXT, scalaVersion=TEXT, jdkVersion=TEXT),
        sparkConf=TEXTS,
        applicationTolerations=record(
            restartConfig=record(
                restartPolicy=one_of("Always", "Never", "OnFailure", "OnInfrastructureFailure"),
                maxRestartAttempts=COUNT,
                restartBackoffMillis=COUNT,
                restartCounterResetMillis={"type": "integer"},
            ),
            applicationTimeoutConfig=record(
                driverStartTimeoutMillis=COUNT, driverReadyTimeoutMillis=COUNT, executorStartTimeoutMillis=COUNT
            ),
            instanceConfig=record(initExecutors=COUNT, minExecutors=COUNT, maxExecutors=COUNT),
            resourceRetainPolicy=one_of("Always", "Never", "OnFailure"),
        ),
        driverSpec=TEMPLATE,
        executorSpec=TEMPLATE,
    ),
)
KAFKA_TOPIC = resource(
    "kafka.strimzi.io/v1",
    spec=record(
        "partitions replicas config",
        topicName={"type": "string", "pattern": r"^[A-Za-z0-9._-]{1,249}$"},
        partitions={"type": "integer", "minimum": 1},
        replicas={"type": "integer", "minimum": 1, "maximum": 32767},
        config=TEXTS,
    ),
)
ACL = record(
    "resource operations",
    type=one_of("allow", "deny"),
    host=TEXT,
    resource=record(
        "type name",
        type=one_of("topic", "group", "cluster", "transactionalId"),
        name=TEXT,
        patternType=one_of("literal", "prefix"),
    ),
    operations=each(
        one_of(
            *("Read", "Write", "Create", "Delete", "Alter", "Describe", "ClusterAction"),
            *("AlterConfigs", "DescribeConfigs", "IdempotentWrite", "All"),
        )
    ),
)
KAFKA_USER = resource(
    "kafka.strimzi.io/v1",
    spec=record(
        "authentication authorization",
        authentication=record("type", type=one_of("tls", "tls-external", "scram-sha-512")),
        authorization=record("type acls", type=one_of("simple"), acls=each(ACL)),
    ),
)
SERVICE = resource(
    "v1",
    spec=record(
        "selector ports",
        clusterIP=one_of("None"),
        selector=TEXTS,
        ports=each(record("port", name=TEXT, port=COUNT, targetPort=PORT, protocol=one_of("TCP", "UDP"))),
    ),
)
CLAIM = resource(
    "v1",
    spec=record(
        "accessModes resources",
        accessModes=each(one_of("ReadWriteOnce", "ReadWriteMany", "ReadOnlyMany", "ReadWriteOncePod")),
        storageClassName=TEXT,
        resources=record("requests", requests=record("storage", storage={"pattern": r"^\d+(Gi|Ti)$"})),
    ),
)
SERVICE_MONITOR = resource(
    "monitoring.coreos.com/v1",
    spec=record(
        "selector endpoints",
        jobLabel=TEXT,
        selector=SELECTOR,
        endpoints=each(record("port", port=TEXT, path=TEXT, interval={"pattern": r"^\d+[sm]$"})),
    ),
)
PEER = record(podSelector=SELECTOR, namespaceSelector=SELECTOR)
NETWORK_POLICY = resource(
    "networking.k8s.io/v1",
    spec=record(
        "podSelector",
        podSelector=SELECTOR,
        policyTypes=each(one_of("Ingress", "Egress")),
        ingress=each(record(**{"from": each(PEER)}, ports=each(record("port", port=PORT, protocol=one_of("TCP"))))),
    ),
)
AMOUNT = {"anyOf": [COUNT, {"const": 0}, {"pattern": r"^\d+%$"}]}
DEPLOYMENT = resource(
    "apps/v1",
    spec=record(
        "selector template",
        replicas=COUNT,
        selector=SELECTOR,
        strategy=record(
            "", type=one_of("RollingUpdate", "Recreate"), rollingUpdate=record(maxUnavailable=AMOUNT, maxSurge=AMOUNT)
        ),
        template=record("metadata spec", metadata=LABELLED, spec=POD),
    ),
)
BUDGET = resource("policy/v1", spec=record("selector", minAvailable=AMOUNT, maxUnavailable=AMOUNT, selector=SELECTOR))
RULE = record("apiGroups resources verbs", apiGroups=each({"type": "string"}), resources=each(TEXT), verbs=each(TEXT))
SUBJECT = record("kind name", kind=one_of("ServiceAccount"), name=TEXT, namespace=TEXT)

SCHEMAS: dict[str, Schema] = {
    "SparkApplication": SPARK_APPLICATION,
    "Deployment": DEPLOYMENT,
    "PodDisruptionBudget": BUDGET,
    "KafkaTopic": KAFKA_TOPIC,
    "KafkaUser": KAFKA_USER,
    "Service": SERVICE,
    "ServiceMonitor": SERVICE_MONITOR,
    "ServiceAccount": resource("v1", "", automountServiceAccountToken=FLAG),
    "ConfigMap": resource("v1", "data", data=TEXTS),
    "PersistentVolumeClaim": CLAIM,
    "NetworkPolicy": NETWORK_POLICY,
    "Role": resource("rbac.authorization.k8s.io/v1", "rules", rules=each(RULE)),
    "RoleBinding": resource(
        "rbac.authorization.k8s.io/v1",
        "roleRef subjects",
        roleRef=record(
            "apiGroup kind name", apiGroup={"const": "rbac.authorization.k8s.io"}, kind=one_of("Role"), name=TEXT
        ),
        subjects=each(SUBJECT),
    ),
}
