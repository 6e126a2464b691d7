package lockkeeper;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.Serializable;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;

/**
 * What tasks of one batch need to answer requests from the table: streaming/enforcer/known_task.py writes it as JSON. The
 * records of a partition that is not in it are for Python.
 */
public final class KnownTask implements Serializable {
    static final ObjectMapper JSON = new ObjectMapper(); // a new one looks at each class again, for some ms

    private static final int TRUSTS = 2; // with a table
    // A quarter of the heap is for the tables of an instance: the other half of its old generation is for what Spark holds.
    // 100,000 answers of Lenses 6 take 115 MB, and where they do not fit, a third of the requests for them is for Python.
    private static final int SHARE = 4;
    private static final Map TABLES = new HashMap(); // by trust, of the instance of the job that asked last
    private static String owner = "";

    public Versions versions;
    public long now; // ms, for deadlines
    public int recordIn; // bytes, with the key
    public int recordOut;
    public Map contextFields; // by system; of others all of a context is part of what is asked
    public KnownPartition[] partitions;
    private String instance;

    static KnownTask read(String instance, byte[] json) throws IOException {
        KnownTask task = (KnownTask) JSON.readValue(json, KnownTask.class);
        task.instance = instance;
        return task;
    }

    /** null: its records are for Python. */
    KnownPartition partition(PartitionRange range) {
        for (int number = 0; number < partitions.length; number++) {
            if (partitions[number].number == range.partition && partitions[number].topic.equals(range.topic)) {
                return partitions[number];
            }
        }
        return null;
    }

    /** The answers by the policies and facts of this task; null: there are newer ones, or too many tables. */
    KnownAnswers table(KnownPartition partition) {
        KnownAnswers table;
        synchronized (TABLES) {
            if (!owner.equals(instance)) {
                TABLES.clear();
                owner = instance;
            }
            table = (KnownAnswers) TABLES.get(partition.trust);
            if (table == null && TABLES.size() < TRUSTS) {
                table = new KnownAnswers(0);
                TABLES.put(partition.trust, table);
                for (Iterator each = TABLES.values().iterator(); each.hasNext();) {
                    ((KnownAnswers) each.next()).resize(Runtime.getRuntime().maxMemory() / SHARE / TABLES.size());
                }
            }
        }
        return table != null && table.follow(versions) ? table : null;
    }

    static void forget(String instance) {
        synchronized (TABLES) {
            if (owner.equals(instance)) {
                TABLES.clear();
            }
        }
    }

    /** Of an input partition: what its producers may claim, what its decisions share, and its budget. */
    public static final class KnownPartition implements Serializable {
        public String topic;
        public int number;
        public String trust;
        public boolean trustsTime;
        public byte[] head;
        public byte[] tail;
        public String decisions; // the topic
        public long bytes; // that may be read and written
        public boolean exceeds; // the first record may go beyond that
    }

    /** By which policies and facts a batch is decided, and what has changed since versions before. */
    public static final class Versions implements Serializable {
        public long number; // rises with each change
        public Map epochs; // by system: how often its policies have changed for everybody
        public Map tries; // by system: how often its policies have changed
        public long first; // the number of the first of these lookups
        public long[] lookups; // of facts and principals, that may have other answers than before; the newest last

        /** How many lookups have changed, ever. */
        long changes() {
            return first + lookups.length;
        }

        /** Whether all that has changed after so many is known. */
        boolean isContinued(long changes) {
            return first <= changes && changes <= changes();
        }
    }
}
