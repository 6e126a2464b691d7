package lockkeeper;

import org.apache.spark.Partition;
import org.apache.spark.TaskContext;
import org.apache.spark.rdd.RDD;
import scala.jdk.javaapi.CollectionConverters;
import scala.reflect.ClassTag;

/** The records of a batch that are for Python: what a task hands over of its rows. */
final class UndecidedRows extends RDD {
    /** Of the task that runs in a thread: its workers' input is read there, too. */
    private static final ThreadLocal HANDED_OVER = new ThreadLocal();

    private final ClassTag tag;

    UndecidedRows(RDD rows) {
        super(rows, scala.reflect.ClassTag$.MODULE$.apply(org.apache.spark.sql.catalyst.InternalRow.class));
        tag = scala.reflect.ClassTag$.MODULE$.apply(org.apache.spark.sql.catalyst.InternalRow.class);
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
        return CollectionConverters.asScala((KnownRecords) HANDED_OVER.get());
    }
}
