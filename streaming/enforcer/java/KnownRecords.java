package lockkeeper;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.Iterator;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.spark.sql.catalyst.InternalRow;
import org.slf4j.LoggerFactory;

/**
 * The records of a task: those whose answers are known are decided here, and this iterates over the others, which are for
 * Python. Decisions wait for those on records before them, so that all of a partition are in its order.
 *
 * The budget of a task (streaming/enforcer/ranges.py) bounds the bytes of both; Python counts the seconds that it takes
 * for its part. Here they need not be counted: so many bytes take a fraction of a second.
 */
final class KnownRecords implements Iterator, Outbox {
    static final AtomicLong FAILURES = new AtomicLong(); // of this class, in this JVM
    private static final int SENT_TOGETHER = 1000;

    private final KnownTask task;
    private final PartitionRange range;
    private final KnownTask.KnownPartition partition; // null: all records are for Python
    private final KnownAnswers table; // null: the same
    private final scala.collection.Iterator rows; // of Spark's Kafka source
    private final byte[] topic;
    private final RequestScan scan = new RequestScan();
    private final Lookup lookup;
    private final Rendering rendering;
    private final KnownCounts counts = new KnownCounts();
    private final ArrayDeque waiting = new ArrayDeque(); // decisions
    private InternalRow next;
    private long records;
    private long bytes;
    private long handedOver = -1; // the offset of the last record for Python
    private long decidedEnd; // of those: all before this offset are decided
    private long first = -1; // offset of all, and the one behind the last
    private long last;
    private long stop = Long.MAX_VALUE; // the offset from which on nothing is decided
    private boolean hasStopped; // here, not in Python

    KnownRecords(KnownTask task, PartitionRange range, scala.collection.Iterator rows) {
        this.task = task;
        this.range = range;
        this.rows = rows;
        topic = range.topic.getBytes(StandardCharsets.UTF_8);
        partition = task == null ? null : task.partition(range);
        table = partition == null ? null : task.table(partition);
        rendering = partition == null ? null : new Rendering(partition);
        lookup = partition == null ? null : new Lookup(new ContextFields(task.contextFields));
    }

    /** Decides some; false: the next record is for Python, or there is none. */
    boolean decide() {
        for (int left = SENT_TOGETHER; left > 0 && next == null; left--) {
            if (stop != Long.MAX_VALUE || !rows.hasNext()) {
                return false;
            }
            take((InternalRow) rows.next());
        }
        return next == null;
    }

    public boolean hasNext() {
        while (next == null && stop == Long.MAX_VALUE && rows.hasNext()) {
            take((InternalRow) rows.next());
        }
        return next != null;
    }

    public Object next() {
        hasNext();
        InternalRow row = next;
        next = null;
        return row;
    }

    private void take(InternalRow row) {
        if (table == null) {
            next = new InputRecord(row).row(topic, range.partition, KnownAnswers.NOTHING);
            handedOver = InputRecord.offset(row);
            return;
        }
        long offset = InputRecord.offset(row);
        if (offset < range.committed) { // rule 2, see Worker in streaming/enforcer/worker.py
            return;
        }
        InputRecord record = new InputRecord(row);
        lookup.missing = KnownAnswers.NOTHING;
        KnownDecision decision = null;
        try {
            decision = record.value == null ? null : decide(record);
        } catch (RuntimeException bug) {
            lookup.missing = KnownAnswers.NOTHING; // costs time alone: Python decides the record
            report(bug);
        }
        int used = record.bytes(topic) + (decision == null ? 0 : ((byte[]) decision.record.value()).length);
        first = first < 0 ? offset : first;
        if (bytes + used > partition.bytes && (records > 0 || !partition.exceeds)) {
            stop = offset;
            hasStopped = true;
            return;
        }
        last = offset + 1;
        records++;
        bytes += used;
        if (decision != null) {
            waiting.add(decision);
        } else {
            next = record.row(topic, range.partition, lookup.missing);
            handedOver = offset;
        }
    }

    /** Logs the first, without what it says, which may be of the record. */
    private static void report(RuntimeException bug) {
        if (FAILURES.getAndIncrement() == 0) {
            LoggerFactory.getLogger("lockkeeper").warn(
                "records are decided the slow way; please report it: {} at {}", bug.getClass().getName(),
                bug.getStackTrace().length == 0 ? "" : bug.getStackTrace()[0].toString());
        }
    }

    /** The decision on a record; null: it is not known. */
    private KnownDecision decide(InputRecord request) {
        byte[] value = request.value;
        if (value.length + request.keyLength() > task.recordIn || !scan.scan(value)
            || scan.deadline != RequestScan.NO_MOMENT && task.now > scan.deadline) {
            return null;
        }
        long at = scan.time != RequestScan.NO_MOMENT && partition.trustsTime ? scan.time : request.recorded;
        table.find(scan, at, task.versions.number, lookup);
        if (lookup.answer == null) {
            return null;
        }
        ProducerRecord record = rendering.record(request, scan, lookup.answer, at);
        boolean fits = ((byte[]) record.value()).length <= task.recordOut - request.keyLength();
        return fits ? new KnownDecision(request.offset, request.recorded, lookup.answer.label, record) : null;
    }

    /** Takes over what a worker says of an Arrow batch: up to where it has decided, and what is to be learned of it. */
    long decided(byte[] report) {
        ByteBuffer in = ByteBuffer.wrap(report).order(java.nio.ByteOrder.LITTLE_ENDIAN);
        decidedEnd = in.getLong();
        if (in.get() == 1) { // Python's budget is used up
            stop = decidedEnd;
            hasStopped = false;
        }
        if (in.hasRemaining() && table != null) {
            table.learn(in, task.versions.number);
        }
        return decidedEnd;
    }

    /** Up to where all is decided, Python's last Arrow batch included. */
    long end() {
        if (handedOver >= Math.max(decidedEnd, range.committed) && stop > handedOver) {
            throw new IllegalStateException("a worker has not decided offset " + handedOver + " of " + range.topicPartition());
        }
        return stop;
    }

    /** What is counted of the decisions that were sent; "": there are none. */
    String sideOutput() {
        if (counts.isEmpty() && !hasStopped) {
            return "";
        }
        double share = bytes / (double) Math.max(partition.bytes, 1);
        return counts.sideOutput(range, first, hasStopped ? stop : Math.min(stop, last), hasStopped, share);
    }

    public long offset() {
        return waiting.isEmpty() ? Long.MAX_VALUE : ((KnownDecision) waiting.peek()).offset;
    }

    public ProducerRecord take() {
        KnownDecision decision = (KnownDecision) waiting.poll();
        counts.add(decision, task.now - decision.recorded);
        return decision.record;
    }
}
