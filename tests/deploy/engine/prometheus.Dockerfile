# Debian's Prometheus.
FROM debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends busybox prometheus \
    && rm -rf /var/lib/apt/lists/* /etc/prometheus/* && ln -s /bin/busybox /usr/bin/wget \
    && mkdir -p /prometheus && chown 65534 /prometheus
WORKDIR /prometheus
USER 65534
VOLUME ["/prometheus"]
ENTRYPOINT ["/usr/bin/prometheus"]
CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]
