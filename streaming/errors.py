"""What stops a job, or keeps it from starting. Each message says what was wrong, where, and how to fix it."""


class JobStopped(Exception):
    """Base of what ends the job on purpose; the process exits with a code that is not 0."""


class Fenced(JobStopped):
    """Another instance with the same job name took over."""


class CannotStart(JobStopped):
    """What Kafka and the checkpoint say does not fit together, or a topic would break a promise."""


class CannotWrite(Exception):
    """Kafka does not let a job write, or does not answer: later it may."""


class Stopping(JobStopped):
    """It was asked to stop while it waited: no failure."""


class WorkersFailed(JobStopped):
    """An executor cannot run the Python workers, or would decide by other code than the job."""


class TopicChanged(JobStopped):
    """A topic that the job reads was deleted and re-created while it ran, or records of documents were deleted."""


class OffsetsDisagree(JobStopped):
    """Spark proposed a range that does not follow from the committed offsets: records would be lost."""


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
