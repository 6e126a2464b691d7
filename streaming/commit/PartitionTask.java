package lockkeeper;

import java.util.ArrayList;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.spark.TaskContext;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;

/**
 * Decides the input partitions of a set: sends to Kafka what the worker makes of each, as it comes, and leaves the
 * transaction open. The driver has it committed once it has what all of the batch's tasks report; see PartitionCommits.
 */
final class PartitionTask {
    private static final int PACKED = 0; // the columns of SCHEMA in streaming/commit/evaluation.py
    private static final int SIDE = 1;
    private static final int KNOWN = 2;

    private final WriterSettings settings;
    private final PartitionSet set;
    private final KnownTask knownTask;
    private final long began = System.nanoTime();
    private final long[] millis = new long[2]; // until the producer was there, until all was sent

    PartitionTask(WriterSettings settings, PartitionSet set, KnownTask knownTask) {
        this.settings = settings;
        this.set = set;
        this.knownTask = knownTask;
    }

    /** A PartitionResult of each partition. */
    List run(UndecidedRows rows, RDD workers, TaskContext context) {
        PartitionProducer producer = null;
        long attempt = PartitionProducer.NONE;
        try {
            while (attempt == PartitionProducer.NONE) { // again where a task that failed has just given the producer up
                producer = PartitionProducers.of(settings, set, context.taskAttemptId());
                millis[0] = since();
                attempt = producer.begin(context.taskAttemptId());
            }
            List results = new ArrayList();
            for (Iterator each = set.ranges.iterator(); each.hasNext();) {
                results.add(decide((PartitionRange) each.next(), producer, attempt, rows, workers, context));
            }
            return results;
        } catch (Exception error) {
            if (producer != null && producer.giveUp(attempt)) {
                PartitionProducers.discard(settings, set.id, producer);
            }
            int status = Failures.statusOf(error);
            if (status < 0) {
                // The worker's, or Spark's reader's, which the driver explains.
                throw error instanceof RuntimeException ? (RuntimeException) error : new RuntimeException(error);
            }
            return failed(status, Failures.chain(error));
        }
    }

    private byte[] decide(
            PartitionRange range, PartitionProducer producer, long attempt, UndecidedRows rows, RDD workers,
            TaskContext context) {
        long committed = producer.committed(range);
        if (committed != range.committed) {
            return PartitionResult.encode(
                range, PartitionResult.MOVED, committed, PartitionProducer.NONE, "", millis, Collections.EMPTY_LIST, "");
        }
        List sides = new ArrayList();
        String counted = range.parent() == null ? "" : send(range, producer, attempt, rows, workers, context, sides);
        millis[1] = since();
        return PartitionResult.encode(range, PartitionResult.OK, committed, attempt, "", millis, sides, counted);
    }

    /** Decides and sends all of a partition; what is counted of what was known. */
    private String send(
            PartitionRange range, PartitionProducer producer, long attempt, UndecidedRows rows, RDD workers,
            TaskContext context, List sides) {
        KnownRecords records = new KnownRecords(knownTask, range, rows.all(range.parent(), context));
        List boxes = new ArrayList();
        boxes.add(records);
        while (records.decide()) {
            producer.send(attempt, range, boxes, Long.MAX_VALUE);
        }
        if (records.hasNext()) { // else no worker is needed
            scala.collection.Iterator decided = UndecidedRows.decided(workers, range.parent(), context, records);
            while (decided.hasNext()) {
                InternalRow row = (InternalRow) decided.next();
                if (!row.isNullAt(PACKED)) {
                    boxes.add(ColumnarBatch.unpack(row.getBinary(PACKED)));
                }
                if (!row.isNullAt(SIDE)) { // the last row of an Arrow batch
                    sides.add(row.getBinary(SIDE));
                    producer.send(attempt, range, boxes, records.decided(row.getBinary(KNOWN)));
                    boxes.subList(1, boxes.size()).clear();
                }
            }
        }
        producer.send(attempt, range, boxes, records.end());
        return records.sideOutput();
    }

    private List failed(int status, String error) {
        List results = new ArrayList();
        for (Iterator each = set.ranges.iterator(); each.hasNext();) {
            PartitionRange range = (PartitionRange) each.next();
            results.add(PartitionResult.encode(
                range, status, range.committed, PartitionProducer.NONE, error, millis, Collections.EMPTY_LIST, ""));
        }
        return results;
    }

    private long since() {
        return TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - began);
    }
}
