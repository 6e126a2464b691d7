package lockkeeper;

import org.apache.kafka.clients.admin.Admin;
import org.apache.spark.SparkEnv;

/** This executor: its place in the cluster, and its admin client. */
final class Executors {
    private static Admin admin;

    private Executors() { }

    /** As Spark names it where a task is to run: `executor_<host>_<id>` (org.apache.spark.scheduler.TaskLocation). */
    static String here() {
        SparkEnv environment = SparkEnv.get();
        return "executor_" + environment.blockManager().blockManagerId().host() + "_" + environment.executorId();
    }

    static synchronized Admin admin(WriterSettings settings) {
        if (admin == null) {
            admin = Admin.create(settings.admin);
        }
        return admin;
    }
}
