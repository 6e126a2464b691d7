package lockkeeper;

import java.io.Serializable;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.spark.Partition;
import org.apache.spark.SparkContext;
import org.apache.spark.TaskContext;
import org.apache.spark.rdd.RDD;
import scala.jdk.javaapi.CollectionConverters;
import scala.reflect.ClassTag;

/** Commits what tasks have sent, in the executors that have the transactions: all of one executor side by side. */
public final class PartitionCommits {
    /** A commit waits for the brokers most of its time. */
    private static final int SIDE_BY_SIDE = 64;

    private PartitionCommits() { }

    /** lines: as CommitLine reads them. */
    public static byte[][] commit(SparkContext spark, WriterSettings settings, String lines) throws Exception {
        List all = CommitLine.parse(lines);
        byte[][] results;
        if (spark.isLocal()) {
            results = commitHere(settings, all);
        } else {
            results = (byte[][]) new CommittedPartitions(spark, settings, all).collect();
        }
        return new byte[][] {PartitionResult.together(results)};
    }

    /**
     * Commits offsets alone, where the driver is: of partitions of which nothing was decided. A partition of which
     * something else is committed than the line says is left as it is.
     */
    public static byte[][] commitOffsets(SparkContext spark, WriterSettings settings, String lines) throws Exception {
        byte[][] results = inThreads(settings, CommitLine.parse(lines), true, !spark.isLocal());
        return new byte[][] {PartitionResult.together(results)};
    }

    static byte[][] commitHere(WriterSettings settings, List lines) throws Exception {
        return inThreads(settings, lines, false, false);
    }

    private static byte[][] inThreads(WriterSettings settings, List lines, boolean begins, boolean closes)
            throws Exception {
        ExecutorService threads =
            java.util.concurrent.Executors.newFixedThreadPool(Math.min(Math.max(lines.size(), 1), SIDE_BY_SIDE));
        try {
            List calls = new ArrayList();
            for (Iterator each = lines.iterator(); each.hasNext();) {
                calls.add(new CommitCall(settings, (CommitLine) each.next(), begins, closes));
            }
            List futures = threads.invokeAll(calls);
            byte[][] results = new byte[futures.size()][];
            for (int number = 0; number < results.length; number++) {
                results[number] = (byte[]) ((Future) futures.get(number)).get();
            }
            return results;
        } finally {
            threads.shutdown();
        }
    }
}

/** What to commit of a partition, and where. */
final class CommitLine implements Serializable {
    final PartitionRange range;
    final long attempt;
    final String executor;
    final long offset;
    final String metadata;

    /** line: topic, partition, committed offset, attempt, executor, offset and metadata, with tabs between them. */
    private CommitLine(String line) {
        String[] fields = line.split("\t", 7);
        range = new PartitionRange(fields[0] + "\t" + fields[1] + "\t" + fields[2]);
        attempt = Long.parseLong(fields[3]);
        executor = fields[4];
        offset = Long.parseLong(fields[5]);
        metadata = fields[6];
    }

    static List parse(String lines) {
        List parsed = new ArrayList();
        String[] all = lines.split("\n");
        for (int number = 0; number < all.length; number++) {
            parsed.add(new CommitLine(all[number]));
        }
        return parsed;
    }

    /** Metadata ends with a NUL, as where librdkafka's clients commit it: they read it back up to there. */
    OffsetAndMetadata offsetAndMetadata() {
        return new OffsetAndMetadata(offset, metadata + "\0");
    }
}

/** Commits one partition. */
final class CommitCall implements Callable {
    private final WriterSettings settings;
    private final CommitLine line;
    private final boolean begins;
    private final boolean closes;

    CommitCall(WriterSettings settings, CommitLine line, boolean begins, boolean closes) {
        this.settings = settings;
        this.line = line;
        this.begins = begins;
        this.closes = closes;
    }

    public Object call() {
        PartitionProducer producer = null;
        try {
            producer = begins
                ? PartitionProducers.of(settings, line.range) : PartitionProducers.kept(settings, line.range);
            if (producer == null) {
                return result(PartitionResult.ABSENT, line.range.committed, "the executor has no such transaction", 0);
            }
            if (begins && producer.committed() != line.range.committed) {
                return result(PartitionResult.MOVED, producer.committed(), "", 0);
            }
            return commit(producer, begins ? producer.begin() : line.attempt);
        } catch (Throwable error) {
            if (producer != null) {
                PartitionProducers.discard(settings, line.range, producer);
            }
            int status = Failures.statusOf(error);
            return result(
                status < 0 ? PartitionResult.UNAVAILABLE : status, line.range.committed, Failures.chain(error), 0);
        }
    }

    private Object commit(PartitionProducer producer, long attempt) {
        long millis = producer.commit(attempt, line.offsetAndMetadata());
        if (millis < 0) {
            return result(PartitionResult.ABSENT, line.range.committed, "another attempt has the transaction", 0);
        }
        // Kafka's producer repeats a request without an answer after request.timeout.ms. To brokers before KIP-890 such a
        // repetition, late, may end the next transaction (KAFKA-14402); a new producer has a new epoch, which voids it.
        if (closes || millis >= settings.requestTimeoutMs) {
            PartitionProducers.discard(settings, line.range, producer);
        }
        return result(PartitionResult.OK, line.offset, "", millis);
    }

    private byte[] result(int status, long offset, String error, long millis) {
        return PartitionResult.encode(
            line.range, status, offset, line.attempt, error, new long[] {millis}, Collections.EMPTY_LIST, "");
    }
}

/** A task for each executor that has transactions to commit; it runs there, or finds that it does not. */
final class CommittedPartitions extends RDD {
    private final transient ExecutorCommits[] executors;
    private final WriterSettings settings;

    CommittedPartitions(SparkContext spark, WriterSettings settings, List lines) {
        super(
            spark, CollectionConverters.asScala(Collections.EMPTY_LIST).toSeq(),
            scala.reflect.ClassTag$.MODULE$.apply(byte[].class));
        this.settings = settings;
        Map byExecutor = new LinkedHashMap();
        for (Iterator each = lines.iterator(); each.hasNext();) {
            CommitLine line = (CommitLine) each.next();
            if (!byExecutor.containsKey(line.executor)) {
                byExecutor.put(line.executor, new ExecutorCommits(byExecutor.size(), line.executor));
            }
            ((ExecutorCommits) byExecutor.get(line.executor)).lines.add(line);
        }
        executors = (ExecutorCommits[]) byExecutor.values().toArray(new ExecutorCommits[byExecutor.size()]);
    }

    public Partition[] getPartitions() {
        return executors;
    }

    public scala.collection.immutable.Seq getPreferredLocations(Partition split) {
        return CollectionConverters.asScala(Collections.singletonList(((ExecutorCommits) split).executor)).toSeq();
    }

    public scala.collection.Iterator compute(Partition split, TaskContext context) {
        try {
            byte[][] results = PartitionCommits.commitHere(settings, ((ExecutorCommits) split).lines);
            return CollectionConverters.asScala(Arrays.asList((Object[]) results).iterator());
        } catch (Exception error) { // the task was interrupted
            throw new RuntimeException(error);
        }
    }
}

/** What one executor is to commit. */
final class ExecutorCommits implements Partition {
    final String executor;
    final List lines = new ArrayList();
    private final int index;

    ExecutorCommits(int index, String executor) {
        this.index = index;
        this.executor = executor;
    }

    public int index() {
        return index;
    }

    public boolean org$apache$spark$Partition$$super$equals(Object other) {
        return super.equals(other);
    }
}
