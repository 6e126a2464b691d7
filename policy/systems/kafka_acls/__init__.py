"""Kafka's access control lists, as its StandardAuthorizer decides by them."""

from policy.systems.kafka_acls.system import KafkaAcls

SYSTEM = KafkaAcls()
