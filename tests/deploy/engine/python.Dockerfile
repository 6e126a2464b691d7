# Debian's Python in the place of the official image.
FROM debian:bookworm-slim
ENV LANG=C.UTF-8 SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt PIP_CERT=/etc/ssl/certs/ca-certificates.crt
RUN apt-get update && apt-get install -y --no-install-recommends python3.11 python3-pip python3-setuptools netbase tzdata \
    && rm -rf /var/lib/apt/lists/* /usr/lib/python3*/EXTERNALLY-MANAGED \
    && for name in python python3; do ln -s /usr/bin/python3.11 /usr/local/bin/$name; done \
    && ln -s /usr/bin/pip3 /usr/local/bin/pip
