# The locked jars of Kafka, with its own start in a container.
FROM debian:bookworm-slim
RUN mkdir -p /usr/share/man/man1 \
    && apt-get update && apt-get install -y --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 appuser
COPY libs /opt/kafka/libs
COPY log4j2.yaml /opt/kafka/config/log4j2.yaml
COPY kafka.sh /opt/kafka/run
RUN mkdir -p /etc/kafka/docker /mnt/shared/config /var/lib/kafka/data \
    && touch /etc/kafka/docker/server.properties && cp /opt/kafka/config/log4j2.yaml /etc/kafka/docker/ \
    && chmod +x /opt/kafka/run && chown -R appuser /opt/kafka/config /var/lib/kafka /mnt/shared
USER appuser
EXPOSE 9092
VOLUME ["/var/lib/kafka/data"]
CMD ["/opt/kafka/run"]
