package lockkeeper;

import java.util.Iterator;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;

/** The producers of this executor, by instance of the job and transactional id. */
public final class PartitionProducers {
    private static final ConcurrentHashMap BY_ID = new ConcurrentHashMap();
    /** A producer has a thread and connections: beyond so many, those are closed that have no transaction for a while. */
    private static final int KEPT = 256;
    private static final long UNUSED_NANOS = TimeUnit.SECONDS.toNanos(30);
    /**
     * Offsets of idle partitions are committed by the driver, hourly as a rule, under their transactional ids. A producer
     * that was idle for so long may be fenced: a new one costs less than a batch that is decided twice.
     */
    private static final long IDLE_NANOS = TimeUnit.MINUTES.toNanos(10);

    private PartitionProducers() { }

    private static String key(WriterSettings settings, PartitionRange range) {
        return settings.instance + "\n" + range.transactionalId(settings.job);
    }

    /** The producer of a partition, and of what it knows to be committed if that is what was planned with. */
    static PartitionProducer of(WriterSettings settings, PartitionRange range) throws Exception {
        String key = key(settings, range);
        PartitionProducer kept = (PartitionProducer) BY_ID.get(key);
        if (kept != null) {
            if (kept.committed() == range.committed && (kept.isOpen() || kept.idleNanos() < IDLE_NANOS)) {
                return kept.use();
            }
            BY_ID.remove(key, kept);
            kept.close();
        }
        PartitionProducer opened = new PartitionProducer(settings, range);
        PartitionProducer other = (PartitionProducer) BY_ID.put(key, opened);
        if (other != null) {
            other.close();
        }
        closeIdle();
        return opened;
    }

    /** The producer of a partition; null: there is none here. */
    static PartitionProducer kept(WriterSettings settings, PartitionRange range) {
        return (PartitionProducer) BY_ID.get(key(settings, range));
    }

    /** Gives a producer up whose transaction failed. */
    static void discard(WriterSettings settings, PartitionRange range, PartitionProducer failed) {
        BY_ID.remove(key(settings, range), failed);
        failed.close();
    }

    private static void closeIdle() {
        for (Iterator all = BY_ID.entrySet().iterator(); all.hasNext() && BY_ID.size() > KEPT;) {
            java.util.Map.Entry entry = (java.util.Map.Entry) all.next();
            PartitionProducer producer = (PartitionProducer) entry.getValue();
            // Another task may just have got it, and not begun.
            boolean isUnused = !producer.isOpen() && producer.idleNanos() > UNUSED_NANOS;
            if (isUnused && BY_ID.remove(entry.getKey(), producer)) {
                producer.close();
            }
        }
    }

    /** Closes those of an instance of the job in this JVM, and aborts what they have open. */
    public static void close(String instance) {
        for (Iterator all = BY_ID.keySet().iterator(); all.hasNext();) {
            String key = (String) all.next();
            PartitionProducer producer = key.startsWith(instance + "\n") ? (PartitionProducer) BY_ID.remove(key) : null;
            if (producer != null) {
                producer.closeInOrder();
            }
        }
        Executors.close(instance);
        KnownTask.forget(instance);
    }
}
