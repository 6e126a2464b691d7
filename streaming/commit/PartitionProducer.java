package lockkeeper;

import java.time.Duration;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsOptions;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsSpec;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * The producer of one input partition: its transactional id names job, topic and partition.
 *
 * Exactly once, rule 1: an offset of the partition is committed by this transactional id alone. Kafka gives it to the
 * producer that was initialized last, which fences the one before and ends what that had open; only then is the
 * committed offset read. So nobody else commits between this and the end of the transaction.
 */
final class PartitionProducer {
    static final long NONE = -1;

    private static final int SECONDS = 10;
    private static final AtomicLong ATTEMPTS = new AtomicLong(System.nanoTime());

    private final Producer producer;
    private final TopicPartition partition;
    private final WriterSettings settings;
    private long committed;
    private long attempt = NONE;
    private boolean isGivenUp;
    private long used = System.nanoTime();

    PartitionProducer(WriterSettings settings, PartitionRange range) throws Exception {
        this.settings = settings;
        partition = range.topicPartition();
        Properties own = new Properties();
        own.putAll(settings.producer);
        own.setProperty("transactional.id", range.transactionalId(settings.job));
        producer = new KafkaProducer(own, new ByteArraySerializer(), new ByteArraySerializer());
        boolean opened = false;
        try {
            producer.initTransactions();
            committed = readCommitted();
            opened = true;
        } finally {
            if (!opened) {
                close();
            }
        }
    }

    /** Stable: a transaction whose end is under way may still move it (KIP-447). */
    private long readCommitted() throws Exception {
        ListConsumerGroupOffsetsSpec spec =
            new ListConsumerGroupOffsetsSpec().topicPartitions(Collections.singletonList(partition));
        Map offsets = (Map) Executors.admin(settings)
            .listConsumerGroupOffsets(
                Collections.singletonMap(settings.job, spec), new ListConsumerGroupOffsetsOptions().requireStable(true))
            .partitionsToOffsetAndMetadata(settings.job).get(SECONDS, TimeUnit.SECONDS);
        OffsetAndMetadata offset = (OffsetAndMetadata) offsets.get(partition);
        return offset == null ? NONE : offset.offset();
    }

    synchronized long committed() {
        return committed;
    }

    synchronized boolean isOpen() {
        return attempt != NONE;
    }

    synchronized long idleNanos() {
        return System.nanoTime() - used;
    }

    synchronized PartitionProducer use() {
        used = System.nanoTime();
        return this;
    }

    /**
     * Begins a transaction, and aborts one of an earlier attempt. Returns the number of this attempt; NONE: the producer is
     * given up.
     */
    synchronized long begin() {
        if (isGivenUp) {
            return NONE;
        }
        if (attempt != NONE) {
            attempt = NONE;
            producer.abortTransaction();
        }
        producer.beginTransaction();
        used = System.nanoTime();
        attempt = ATTEMPTS.incrementAndGet();
        return attempt;
    }

    /**
     * Sends what a task has of input records before an offset, if it is this task that writes: Spark may have begun another
     * attempt.
     */
    synchronized void send(long by, List boxes, long end) {
        if (by != attempt) {
            throw new ProducerFencedException("another attempt of the task writes " + partition);
        }
        Outboxes.send(producer, boxes, end);
    }

    /**
     * Commits the transaction of an attempt with the offset that is decided then. Returns how long it took, ms; -1: there
     * is no such transaction.
     */
    synchronized long commit(long by, OffsetAndMetadata offset) {
        if (by != attempt) {
            return -1;
        }
        long began = System.nanoTime();
        producer.sendOffsetsToTransaction(
            Collections.singletonMap(partition, offset), new ConsumerGroupMetadata(settings.job));
        producer.commitTransaction();
        attempt = NONE;
        committed = offset.offset();
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
