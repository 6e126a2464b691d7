package lockkeeper;

import java.io.Serializable;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
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

    /** lines: as SetCommit reads them. */
    public static byte[][] commit(SparkContext spark, WriterSettings settings, String lines) throws Exception {
        List all = SetCommit.parse(lines);
        byte[][] results;
        if (spark.isLocal()) {
            results = commitHere(settings, all);
        } else {
            results = Collect.all(new CommittedPartitions(spark, settings, all));
        }
        return new byte[][] {PartitionResult.together(results)};
    }

    /**
     * Commits offsets alone, where the driver is: of sets of which nothing was decided for long. A partition of which
     * something else is committed than the line says is left as it is.
     */
    public static byte[][] commitOffsets(SparkContext spark, WriterSettings settings, String lines) throws Exception {
        byte[][] results = inThreads(settings, SetCommit.parse(lines), true, !spark.isLocal());
        return new byte[][] {PartitionResult.together(results)};
    }

    static byte[][] commitHere(WriterSettings settings, List commits) throws Exception {
        return inThreads(settings, commits, false, false);
    }

    private static byte[][] inThreads(WriterSettings settings, List commits, boolean begins, boolean closes)
            throws Exception {
        ExecutorService threads =
            java.util.concurrent.Executors.newFixedThreadPool(Math.min(Math.max(commits.size(), 1), SIDE_BY_SIDE));
        try {
            List calls = new ArrayList();
            for (Iterator each = commits.iterator(); each.hasNext();) {
                calls.add(new CommitCall(settings, (SetCommit) each.next(), begins, closes));
            }
            List results = new ArrayList();
            for (Iterator each = threads.invokeAll(calls).iterator(); each.hasNext();) {
                results.addAll((List) ((Future) each.next()).get());
            }
            return (byte[][]) results.toArray(new byte[results.size()][]);
        } finally {
            threads.shutdown();
        }
    }
}

/** What to commit in one transaction, and where. */
final class SetCommit implements Serializable {
    final PartitionSet set;
    final long attempt;
    final String executor;
    private final Map offsets = new HashMap(); // with metadata, by partition

    private SetCommit(PartitionSet set, long attempt, String executor) {
        this.set = set;
        this.attempt = attempt;
        this.executor = executor;
    }

    /**
     * lines: transactional id, attempt, executor, offset, metadata, topic, partition and committed offset, with tabs between
     * them. Those of one id are of one attempt.
     */
    static List parse(String lines) {
        Map byId = new LinkedHashMap();
        String[] all = lines.split("\n");
        for (int number = 0; number < all.length; number++) {
            String[] fields = all[number].split("\t", 6);
            if (!byId.containsKey(fields[0])) {
                PartitionSet set = new PartitionSet(fields[0], byId.size());
                byId.put(fields[0], new SetCommit(set, Long.parseLong(fields[1]), fields[2]));
            }
            ((SetCommit) byId.get(fields[0])).add(new PartitionRange(fields[5]), Long.parseLong(fields[3]), fields[4]);
        }
        return new ArrayList(byId.values());
    }

    /** Metadata ends with a NUL, as where librdkafka's clients commit it: they read it back up to there. */
    private void add(PartitionRange range, long offset, String metadata) {
        set.ranges.add(range);
        offsets.put(range.topicPartition(), new OffsetAndMetadata(offset, metadata + "\0"));
    }

    OffsetAndMetadata offset(PartitionRange range) {
        return (OffsetAndMetadata) offsets.get(range.topicPartition());
    }
}

/** Commits one transaction. */
final class CommitCall implements Callable {
    private final WriterSettings settings;
    private final SetCommit commit;
    private final PartitionSet set;
    private final boolean begins;
    private final boolean closes;

    CommitCall(WriterSettings settings, SetCommit commit, boolean begins, boolean closes) {
        this.settings = settings;
        this.commit = commit;
        this.set = commit.set;
        this.begins = begins;
        this.closes = closes;
    }

    /** A PartitionResult of each partition. */
    public Object call() {
        PartitionProducer producer = null;
        try {
            producer = begins
                ? PartitionProducers.of(settings, set, PartitionProducer.NONE) : PartitionProducers.kept(settings, set.id);
            if (producer == null) {
                return failed(PartitionResult.ABSENT, "the executor has no such transaction");
            }
            return commit(producer.own(set.ranges));
        } catch (Throwable error) {
            if (producer != null) {
                PartitionProducers.discard(settings, set.id, producer);
            }
            int status = Failures.statusOf(error);
            return failed(status < 0 ? PartitionResult.UNAVAILABLE : status, Failures.chain(error));
        }
    }

    /** Of a partition of which something else is committed than was planned with the task has sent nothing. */
    private List commit(PartitionProducer producer) {
        List results = new ArrayList();
        Map offsets = new HashMap();
        for (Iterator each = set.ranges.iterator(); each.hasNext();) {
            PartitionRange range = (PartitionRange) each.next();
            if (producer.committed(range) == range.committed) {
                offsets.put(range.topicPartition(), commit.offset(range));
            } else {
                results.add(result(range, PartitionResult.MOVED, producer.committed(range), "", 0));
            }
        }
        if (offsets.isEmpty()) {
            return results;
        }
        long millis = producer.commit(begins ? producer.begin(PartitionProducer.NONE) : commit.attempt, offsets);
        if (millis < 0) {
            return failed(PartitionResult.ABSENT, "another attempt has the transaction");
        }
        // Kafka's producer repeats a request without an answer after request.timeout.ms. To brokers before KIP-890 such a
        // repetition, late, may end the next transaction (KAFKA-14402); a new producer has a new epoch, which voids it.
        if (closes || millis >= settings.requestTimeoutMs) {
            PartitionProducers.discard(settings, set.id, producer);
        }
        for (Iterator each = set.ranges.iterator(); each.hasNext();) {
            PartitionRange range = (PartitionRange) each.next();
            if (offsets.containsKey(range.topicPartition())) {
                results.add(result(range, PartitionResult.OK, commit.offset(range).offset(), "", millis));
            }
        }
        return results;
    }

    private List failed(int status, String error) {
        List results = new ArrayList();
        for (Iterator each = set.ranges.iterator(); each.hasNext();) {
            PartitionRange range = (PartitionRange) each.next();
            results.add(result(range, status, range.committed, error, 0));
        }
        return results;
    }

    private byte[] result(PartitionRange range, int status, long offset, String error, long millis) {
        return PartitionResult.encode(
            range, status, offset, commit.attempt, error, new long[] {millis}, Collections.EMPTY_LIST, "");
    }
}

/** A task for each executor that has transactions to commit; it runs there, or finds that it does not. */
final class CommittedPartitions extends RDD {
    private final transient ExecutorCommits[] executors;
    private final WriterSettings settings;

    CommittedPartitions(SparkContext spark, WriterSettings settings, List commits) {
        super(
            spark, CollectionConverters.asScala(Collections.EMPTY_LIST).toSeq(),
            scala.reflect.ClassTag$.MODULE$.apply(byte[].class));
        this.settings = settings;
        Map byExecutor = new LinkedHashMap();
        for (Iterator each = commits.iterator(); each.hasNext();) {
            SetCommit commit = (SetCommit) each.next();
            if (!byExecutor.containsKey(commit.executor)) {
                byExecutor.put(commit.executor, new ExecutorCommits(byExecutor.size(), commit.executor));
            }
            ((ExecutorCommits) byExecutor.get(commit.executor)).commits.add(commit);
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
            byte[][] results = PartitionCommits.commitHere(settings, ((ExecutorCommits) split).commits);
            return CollectionConverters.asScala(Arrays.asList((Object[]) results).iterator());
        } catch (Exception error) { // the task was interrupted
            throw new RuntimeException(error);
        }
    }
}

/** What one executor is to commit. */
final class ExecutorCommits implements Partition {
    final String executor;
    final List commits = new ArrayList();
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
