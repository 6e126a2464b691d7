package lockkeeper;

import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.spark.Partition;
import org.apache.spark.TaskContext;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;

/**
 * Decides one input partition: sends to Kafka what the worker makes of it, as it comes, and leaves the transaction open.
 * The driver has it committed once it has what all of the batch's tasks report; see PartitionCommits.
 */
final class PartitionTask {
    private static final int PACKED = 0; // the columns of SCHEMA in streaming/commit/evaluation.py
    private static final int SIDE = 1;
    private static final int KNOWN = 2;

    private final WriterSettings settings;
    private final PartitionRange range;
    private final KnownTask known;
    private final long began = System.nanoTime();
    private final List sides = new ArrayList();
    private String counted = ""; // of what was known
    private final long[] millis = new long[2]; // until the producer was there, until all was sent

    PartitionTask(WriterSettings settings, PartitionRange range, KnownTask known) {
        this.settings = settings;
        this.range = range;
        this.known = known;
    }

    byte[] run(UndecidedRows rows, RDD workers, TaskContext context) {
        PartitionProducer producer = null;
        long attempt = PartitionProducer.NONE;
        try {
            while (attempt == PartitionProducer.NONE) { // again where a task that failed has just given the producer up
                producer = PartitionProducers.of(settings, range);
                millis[0] = since();
                if (producer.committed() != range.committed) {
                    return result(PartitionResult.MOVED, producer.committed(), PartitionProducer.NONE, "");
                }
                attempt = producer.begin();
            }
            sendAll(producer, attempt, rows, workers, context);
            millis[1] = since();
            return result(PartitionResult.OK, range.committed, attempt, "");
        } catch (Exception error) {
            if (producer != null && producer.giveUp(attempt)) {
                PartitionProducers.discard(settings, range, producer);
            }
            int status = Failures.statusOf(error);
            if (status < 0) {
                // The worker's, or Spark's reader's, which the driver explains.
                throw error instanceof RuntimeException ? (RuntimeException) error : new RuntimeException(error);
            }
            sides.clear();
            counted = "";
            return result(status, range.committed, PartitionProducer.NONE, Failures.chain(error));
        }
    }

    private void sendAll(
            PartitionProducer producer, long attempt, UndecidedRows rows, RDD workers, TaskContext context) {
        for (Iterator parents = range.parents().iterator(); parents.hasNext();) {
            Partition parent = (Partition) parents.next();
            KnownRecords records = new KnownRecords(known, range, rows.all(parent, context));
            List boxes = new ArrayList();
            boxes.add(records);
            while (records.decide()) {
                producer.send(attempt, boxes, Long.MAX_VALUE);
            }
            if (records.hasNext()) { // else no worker is needed
                sendDecided(producer, attempt, UndecidedRows.decided(workers, parent, context, records), records, boxes);
            }
            producer.send(attempt, boxes, records.end());
            counted = records.sideOutput();
        }
    }

    private void sendDecided(
            PartitionProducer producer, long attempt, scala.collection.Iterator made, KnownRecords records, List boxes) {
        while (made.hasNext()) {
            InternalRow row = (InternalRow) made.next();
            if (!row.isNullAt(PACKED)) {
                boxes.add(ColumnarBatch.unpack(row.getBinary(PACKED)));
            }
            if (!row.isNullAt(SIDE)) { // the last row of an Arrow batch
                sides.add(row.getBinary(SIDE));
                producer.send(attempt, boxes, records.decided(row.getBinary(KNOWN)));
                boxes.subList(1, boxes.size()).clear();
            }
        }
    }

    private long since() {
        return TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - began);
    }

    private byte[] result(int status, long offset, long attempt, String error) {
        return PartitionResult.encode(range, status, offset, attempt, error, millis, sides, counted);
    }
}
