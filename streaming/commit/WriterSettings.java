package lockkeeper;

import java.io.Serializable;
import java.util.Properties;

/** What executors write by. `instance`: of the job; another one has producers of its own, also in the same JVM. */
public final class WriterSettings implements Serializable {
    final Properties producer;
    final Properties admin;
    final String job;
    final String instance;
    final long requestTimeoutMs;

    public WriterSettings(Properties producer, Properties admin, String job, String instance, long requestTimeoutMs) {
        this.producer = producer;
        this.admin = admin;
        this.job = job;
        this.instance = instance;
        this.requestTimeoutMs = requestTimeoutMs;
    }
}
