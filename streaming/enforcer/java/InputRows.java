package lockkeeper;

import java.nio.charset.StandardCharsets;
import java.util.Iterator;
import org.apache.spark.Partition;
import org.apache.spark.TaskContext;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import scala.jdk.javaapi.CollectionConverters;
import scala.reflect.ClassTag;

/** The rows of Spark's Kafka source as Python gets them; see InputRecord. */
public final class InputRows extends RDD {
    private final ClassTag tag;

    private InputRows(RDD rows) {
        super(rows, scala.reflect.ClassTag$.MODULE$.apply(InternalRow.class));
        tag = scala.reflect.ClassTag$.MODULE$.apply(InternalRow.class);
    }

    public static Dataset of(Dataset records) {
        InputRows rows = new InputRows(records.queryExecution().toRdd());
        return ((SparkSession) records.sparkSession()).internalCreateDataFrame(rows, InputRecord.SCHEMA, false);
    }

    public Partition[] getPartitions() {
        return parent(0, tag).partitions();
    }

    public scala.collection.Iterator compute(Partition split, TaskContext context) {
        return CollectionConverters.asScala(new Rows(parent(0, tag).iterator(split, context)));
    }

    private static final class Rows implements Iterator {
        private final scala.collection.Iterator rows;

        Rows(scala.collection.Iterator rows) {
            this.rows = rows;
        }

        public boolean hasNext() {
            return rows.hasNext();
        }

        public Object next() {
            InternalRow row = (InternalRow) rows.next();
            byte[] topic = InputRecord.topic(row).getBytes(StandardCharsets.UTF_8);
            return new InputRecord(row).row(topic, InputRecord.partition(row), KnownAnswers.NOTHING);
        }
    }
}
