package lockkeeper;

import java.nio.ByteBuffer;
import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.Iterator;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.slf4j.LoggerFactory;

/**
 * The records of a task: those whose answers are known are decided here, and this iterates over the others, which are for
 * Python. Decisions wait for those on records before them, so that all of a partition are in its order.
 *
 * The budget of a task (streaming/enforcer/ranges.py) bounds the bytes of both; Python counts the seconds that it takes
 * for its part. Here they need not be counted: so many bytes take a fraction of a second.
 */
final class KnownRecords implements Iterator, Outbox {
    // Columns of the rows, and what stands beside a value: see COLUMNS in streaming/enforcer/source.py.
    private static final int VALUE = 0;
    private static final int BESIDE = 1;
    private static final int RECORDED = 8;
    private static final int KEY_LENGTH = 20;
    private static final int HEADERS_LENGTH = 24;
    private static final int MISSING = 31;
    private static final int KEY = 32;

    private static final int VALUE_BYTES = 8192; // larger ones are not kept in Python either
    private static final int DECISION_BYTES = 16384; // streaming/enforcer/evaluator.py
    private static final int TRACE_BYTES = 1024; // the same
    private static final byte[] TRACE = Rendering.TRACE.getBytes();
    static final AtomicLong FAILURES = new AtomicLong(); // of this class, in this JVM
    private static final int SENT_TOGETHER = 1000;

    private final KnownTask task;
    private final PartitionRange range;
    private final KnownTask.KnownPartition partition; // null: all records are for Python
    private final KnownAnswers table; // null: the same
    private final scala.collection.Iterator rows;
    private final RequestScan scan = new RequestScan();
    private final Lookup found = new Lookup();
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
        partition = task == null ? null : task.partition(range);
        table = partition == null ? null : task.table(partition);
        rendering = partition == null ? null : new Rendering(partition);
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
            next = row;
            return;
        }
        ByteBuffer beside = ByteBuffer.wrap(row.getBinary(BESIDE));
        byte[] value = row.isNullAt(VALUE) ? null : row.getBinary(VALUE);
        long offset = beside.getLong(0);
        if (offset < range.committed) { // rule 2, see Worker in streaming/enforcer/worker.py
            return;
        }
        found.missing = KnownAnswers.NOTHING;
        KnownDecision decision = null;
        try {
            decision = value == null ? null : decide(value, beside, offset);
        } catch (RuntimeException bug) {
            found.missing = KnownAnswers.NOTHING; // costs time alone: Python decides the record
            report(bug);
        }
        int used = (value == null ? 0 : value.length) + beside.capacity()
            + (decision == null ? 0 : ((byte[]) decision.record.value()).length);
        if (bytes + used > partition.bytes && (records > 0 || !partition.exceeds)) {
            stop = offset;
            hasStopped = true;
            first = first < 0 ? offset : first;
            return;
        }
        first = first < 0 ? offset : first;
        last = offset + 1;
        records++;
        bytes += used;
        if (decision != null) {
            waiting.add(decision);
        } else {
            beside.put(MISSING, (byte) found.missing);
            next = new GenericInternalRow(new Object[] {value, beside.array()});
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
    private KnownDecision decide(byte[] value, ByteBuffer beside, long offset) {
        int keyLength = Math.max(beside.getInt(KEY_LENGTH), 0);
        int headersLength = beside.getInt(HEADERS_LENGTH);
        byte[] trace = headersLength < 0 ? null : trace(beside.array(), KEY + keyLength, headersLength);
        if (value.length > VALUE_BYTES || value.length + keyLength > task.recordIn || headersLength >= 0 && trace == null
            || !scan.scan(value) || scan.deadline != RequestScan.NO_MOMENT && task.now > scan.deadline) {
            return null;
        }
        long recorded = beside.getLong(RECORDED);
        long at = scan.time != RequestScan.NO_MOMENT && partition.trustsTime ? scan.time : recorded;
        table.find(scan, at, task.versions.number, found);
        if (found.answer == null) {
            return null;
        }
        byte[] key = beside.getInt(KEY_LENGTH) < 0 ? null : Arrays.copyOfRange(beside.array(), KEY, KEY + keyLength);
        ProducerRecord record = rendering.record(key, scan, found.answer, offset, at, trace);
        boolean fits = ((byte[]) record.value()).length <= Math.min(DECISION_BYTES, task.recordOut - keyLength);
        return fits ? new KnownDecision(offset, recorded, found.answer.label, record) : null;
    }

    /** The trace of a record whose headers are that alone; null: they are not. */
    private static byte[] trace(byte[] beside, int start, int length) {
        int value = start + 4 + TRACE.length;
        boolean isAlone = length >= 4 + TRACE.length && length - 4 - TRACE.length <= TRACE_BYTES
            && ByteBuffer.wrap(beside).getInt(start) == TRACE.length
            && Arrays.equals(beside, start + 4, value, TRACE, 0, TRACE.length);
        return isAlone ? Arrays.copyOfRange(beside, value, start + length) : null;
    }

    /** Takes over what a worker says of an Arrow batch: up to where it has decided, and what is to be learned of it. */
    long decided(byte[] told) {
        ByteBuffer in = ByteBuffer.wrap(told).order(java.nio.ByteOrder.LITTLE_ENDIAN);
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
        if (handedOver >= decidedEnd && stop > handedOver) {
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
