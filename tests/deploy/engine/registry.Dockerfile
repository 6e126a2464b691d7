# The registry that the tests run, from its archive.
FROM debian:bookworm-slim
RUN mkdir -p /usr/share/man/man1 \
    && apt-get update && apt-get install -y --no-install-recommends curl openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/* && useradd --uid 185 --gid 0 --create-home jboss
ADD registry.tar.gz /deployments/
RUN ln -s /deployments/*-runner.jar /deployments/app.jar
USER 185
EXPOSE 8080
ENTRYPOINT ["java", "-Dquarkus.http.host=0.0.0.0", "-Djava.util.logging.manager=org.jboss.logmanager.LogManager", "-jar", "/deployments/app.jar"]
