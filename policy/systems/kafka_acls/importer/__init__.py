"""Kafka's ACLs from what `kafka-acls.sh --list` prints or a cluster describes, and back as `kafka-acls.sh --add`."""

from policy.importers.frame import Source, Target
from policy.systems.kafka_acls.importer.commands import write
from policy.systems.kafka_acls.importer.listing import translate

SOURCES = {
    "kafka-acls": Source(
        "kafka-acls",
        "what `kafka-acls.sh --list` prints, all of it; without a FILE the ACLs of the cluster that --bootstrap or "
        "--config names",
        translate,
        (
            "kafka-acls.sh --bootstrap-server localhost:9092 --list > acls.txt",
            "lockkeeper import kafka-acls acls.txt --out policies/",
            "lockkeeper import kafka-acls --bootstrap localhost:9092 --out policies/",
        ),
        cluster=True,
    )
}
TARGETS = {
    "kafka-acls": Target(
        "kafka-acls",
        "a shell script of `kafka-acls.sh --add` commands",
        write,
        ("lockkeeper export kafka-acls policies/ > acls.sh", "BOOTSTRAP_SERVERS=localhost:9092 sh acls.sh"),
    )
}
