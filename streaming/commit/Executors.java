package lockkeeper;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import org.apache.kafka.clients.admin.Admin;
import org.apache.spark.SparkEnv;
import org.apache.spark.storage.BlockManager;
import org.apache.spark.storage.BlockManagerId;
import scala.jdk.javaapi.CollectionConverters;

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

    /** All there are but the driver's own, in one order, by the same names. */
    static String[] all() {
        BlockManager own = SparkEnv.get().blockManager();
        Iterator peers = CollectionConverters.asJava(own.master().getPeers(own.blockManagerId())).iterator();
        List names = new ArrayList();
        while (peers.hasNext()) {
            BlockManagerId peer = (BlockManagerId) peers.next();
            names.add("executor_" + peer.host() + "_" + peer.executorId());
        }
        Collections.sort(names);
        return (String[]) names.toArray(new String[names.size()]);
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
