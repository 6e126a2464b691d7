#!/bin/bash
# Writes the broker's settings from KAFKA_… variables and formats its storage, by Kafka's own class; then runs it.
set -e
export CLUSTER_ID=${CLUSTER_ID:-5L6g3nShT-eMCtK--X86sw}
JAVA=(java -Dlog4j2.configurationFile=/opt/kafka/config/log4j2.yaml -cp '/opt/kafka/libs/*')
"${JAVA[@]}" kafka.docker.KafkaDockerWrapper setup --default-configs-dir /etc/kafka/docker \
  --mounted-configs-dir /mnt/shared/config --final-configs-dir /opt/kafka/config >/tmp/setup 2>&1 \
  || grep -qi 'already formatted' /tmp/setup || { cat /tmp/setup; exit 1; }
exec "${JAVA[@]}" ${KAFKA_HEAP_OPTS:--Xmx512m} kafka.Kafka /opt/kafka/config/server.properties
