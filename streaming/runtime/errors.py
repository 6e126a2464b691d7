"""What can go wrong before a job runs. Every message says what was wrong, where, and what would fix it."""


class RuntimeSetupError(Exception):
    """Base of all errors of `streaming.runtime`."""


class JavaNotFoundError(RuntimeSetupError):
    """No Java of a sufficient version is on this machine."""


class JarError(RuntimeSetupError):
    """A locked jar could not be fetched, or is not the file that was locked."""


class BrokerError(RuntimeSetupError):
    """The embedded broker did not start, or one of Kafka's tools failed."""


class SparkStartError(RuntimeSetupError):
    """The JVM that runs Spark did not start."""
