package lockkeeper;

import org.apache.spark.Partition;
import org.apache.spark.TaskContext;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import scala.jdk.javaapi.CollectionConverters;
import scala.reflect.ClassTag;

/** The records of Spark's Kafka source that are for Python: what a task hands over of its rows, or all. */
public final class UndecidedRows extends RDD {
    /** Of the task that runs in a thread: its workers' input is read there, too. */
    private static final ThreadLocal HANDED_OVER = new ThreadLocal();

    private final ClassTag tag;
    private final boolean areAll;

    UndecidedRows(RDD rows, boolean areAll) {
        super(rows, scala.reflect.ClassTag$.MODULE$.apply(org.apache.spark.sql.catalyst.InternalRow.class));
        tag = scala.reflect.ClassTag$.MODULE$.apply(org.apache.spark.sql.catalyst.InternalRow.class);
        this.areAll = areAll;
    }

    /** Records where no table is asked, as Python gets them. */
    public static Dataset of(Dataset records) {
        UndecidedRows rows = new UndecidedRows(records.queryExecution().toRdd(), true);
        return ((SparkSession) records.sparkSession()).internalCreateDataFrame(rows, InputRecord.SCHEMA, false);
    }

    /** All records of a partition, for the task that decides it. */
    scala.collection.Iterator all(Partition partition, TaskContext context) {
        return parent(0, tag).iterator(partition, context);
    }

    /** What a worker makes of the records that a task hands over; workers: depends on this. */
    static scala.collection.Iterator decided(
            RDD workers, Partition partition, TaskContext context, KnownRecords records) {
        HANDED_OVER.set(records);
        try {
            return workers.iterator(partition, context);
        } finally {
            HANDED_OVER.remove();
        }
    }

    public Partition[] getPartitions() {
        return parent(0, tag).partitions();
    }

    public scala.collection.Iterator compute(Partition split, TaskContext context) {
        KnownRecords records = areAll
            ? new KnownRecords(null, DecidedPartitions.rangeOf(split), all(split, context))
            : (KnownRecords) HANDED_OVER.get();
        return CollectionConverters.asScala(records);
    }
}
