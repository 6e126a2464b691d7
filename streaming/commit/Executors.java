package lockkeeper;

import java.time.Duration;
import org.apache.kafka.clients.admin.Admin;
import org.apache.spark.SparkEnv;

/** This executor: its place in the cluster, and its admin client. */
final class Executors {
    private static Admin admin;
    private static String instance = "";

    private Executors() { }

    /** As Spark names it where a task is to run: `executor_<host>_<id>` (org.apache.spark.scheduler.TaskLocation). */
    static String here() {
        SparkEnv environment = SparkEnv.get();
        return "executor_" + environment.blockManager().blockManagerId().host() + "_" + environment.executorId();
    }

    /** Of the instance of the job that asked last: another one may be of another cluster. */
    static synchronized Admin admin(WriterSettings settings) {
        if (!instance.equals(settings.instance)) {
            close(instance);
            admin = Admin.create(settings.admin);
            instance = settings.instance;
        }
        return admin;
    }

    static synchronized void close(String ended) {
        if (admin != null && instance.equals(ended)) {
            admin.close(Duration.ZERO);
            admin = null;
            instance = "";
        }
    }
}
