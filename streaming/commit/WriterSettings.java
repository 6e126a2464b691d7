package lockkeeper;

import java.io.Serializable;
import java.util.Properties;

/**
 * What executors write by. `instance`: of the job; another one has producers of its own, also in the same JVM. `keptMs`: a
 * producer that has written nothing for so long is not used again: the driver may have taken its transactional id.
 */
public final class WriterSettings implements Serializable {
    final Properties producer;
    final Properties admin;
    final String job;
    final String instance;
    final long requestTimeoutMs;
    final long keptMs;

    public WriterSettings(
            Properties producer, Properties admin, String job, String instance, long requestTimeoutMs, long keptMs) {
        this.producer = producer;
        this.admin = admin;
        this.job = job;
        this.instance = instance;
        this.requestTimeoutMs = requestTimeoutMs;
        this.keptMs = keptMs;
    }
}
