package lockkeeper;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * The producer of a transactional id, which is that of one input partition or of a set of them.
 *
 * Exactly once, rule 1: an offset is committed by the transactional id alone that owns the partition, see Ownership.
 * Kafka gives an id to the producer that was initialized last, which fences the one before and ends what that had open;
 * only then are the committed offsets read. So nobody else commits between this and the end of the transaction.
 */
final class PartitionProducer {
    static final long NONE = -1;

    private static final AtomicLong ATTEMPTS = new AtomicLong(System.nanoTime());

    private final Producer producer;
    private final String id;
    private final WriterSettings settings;
    private final Map committed = new HashMap(); // offsets by partition, of those that it owns
    private final Set sent = new HashSet(); // the partitions of which the open transaction has something
    private long attempt = NONE;
    private long newestTask = NONE;
    private boolean isGivenUp;
    private long used = System.nanoTime();

    PartitionProducer(WriterSettings settings, String id) {
        this.settings = settings;
        this.id = id;
        producer = open(settings, id);
    }

    /** A producer that has the transactional id. */
    static Producer open(WriterSettings settings, String id) {
        Properties own = new Properties();
        own.putAll(settings.producer);
        own.setProperty("transactional.id", id);
        Producer producer = new KafkaProducer(own, new ByteArraySerializer(), new ByteArraySerializer());
        boolean opened = false;
        try {
            producer.initTransactions();
            opened = true;
        } finally {
            if (!opened) {
                producer.close(Duration.ZERO);
            }
        }
        return producer;
    }

    /** Notes which attempt of a task uses it. Of an older one that comes late nothing may end what a newer one has open. */
    synchronized void claim(long task) {
        if (task != NONE && task < newestTask) {
            throw new ProducerFencedException("a newer attempt of the task has " + id);
        }
        newestTask = Math.max(newestTask, task);
    }

    /** Reads what is committed of those partitions of which it is not known yet, once the id owns them. */
    synchronized PartitionProducer own(List ranges) throws Exception {
        used = System.nanoTime();
        List unknown = new ArrayList();
        for (Iterator each = ranges.iterator(); each.hasNext();) {
            TopicPartition partition = ((PartitionRange) each.next()).topicPartition();
            if (!committed.containsKey(partition)) {
                unknown.add(partition);
            }
        }
        if (!unknown.isEmpty()) {
            committed.putAll(new Ownership(settings, id).take(unknown));
            used = System.nanoTime();
        }
        return this;
    }

    synchronized long committed(PartitionRange range) {
        return ((Long) committed.get(range.topicPartition())).longValue();
    }

    /** Whether of none of these something else is known to be committed than what was planned with. */
    synchronized boolean isAsPlanned(List ranges) {
        for (Iterator each = ranges.iterator(); each.hasNext();) {
            PartitionRange range = (PartitionRange) each.next();
            Long offset = (Long) committed.get(range.topicPartition());
            if (offset != null && offset.longValue() != range.committed) {
                return false;
            }
        }
        return true;
    }

    synchronized boolean isOpen() {
        return attempt != NONE;
    }

    synchronized long idleMs() {
        return TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - used);
    }

    /**
     * Begins a transaction, and aborts one of an earlier attempt. Returns the number of this attempt; NONE: the producer is
     * given up. task: see claim.
     */
    synchronized long begin(long task) {
        if (isGivenUp) {
            return NONE;
        }
        claim(task);
        if (attempt != NONE) {
            attempt = NONE;
            producer.abortTransaction();
        }
        sent.clear();
        producer.beginTransaction();
        used = System.nanoTime();
        attempt = ATTEMPTS.incrementAndGet();
        return attempt;
    }

    /**
     * Sends what a task has of a partition's records before an offset, if it is this task that writes: Spark may have begun
     * another attempt.
     */
    synchronized void send(long by, PartitionRange range, List boxes, long end) {
        if (by != attempt) {
            throw new ProducerFencedException("another attempt of the task writes " + range.topicPartition());
        }
        sent.add(range.topicPartition());
        Outboxes.send(producer, boxes, end);
    }

    /**
     * Commits the transaction of an attempt with the offsets, by partition, that are decided then. Returns how long it took,
     * ms; -1: there is no such transaction, or it has records of other partitions, too.
     */
    synchronized long commit(long by, Map offsets) {
        if (by != attempt || !offsets.keySet().containsAll(sent)) {
            return -1;
        }
        long began = System.nanoTime();
        producer.sendOffsetsToTransaction(offsets, new ConsumerGroupMetadata(settings.job));
        producer.commitTransaction();
        attempt = NONE;
        for (Iterator each = offsets.entrySet().iterator(); each.hasNext();) {
            Map.Entry entry = (Map.Entry) each.next();
            committed.put(entry.getKey(), Long.valueOf(((OffsetAndMetadata) entry.getValue()).offset()));
        }
        used = System.nanoTime();
        return TimeUnit.NANOSECONDS.toMillis(used - began);
    }

    /**
     * Whether a task that failed may close it: not where another attempt has begun. A task of a stage that has failed may
     * end after the next stage has begun, with the same producer.
     */
    synchronized boolean giveUp(long by) {
        isGivenUp |= by == attempt;
        return isGivenUp;
    }

    /** What is open is aborted by the next producer with this id, or by its timeout. */
    void close() {
        producer.close(Duration.ZERO);
    }

    /** Aborts what is open. */
    void closeInOrder() {
        producer.close(Duration.ofSeconds(1));
    }
}
