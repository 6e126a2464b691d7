package lockkeeper;

import java.util.Iterator;
import java.util.concurrent.ConcurrentHashMap;

/** The producers of this executor, by instance of the job and transactional id. */
public final class PartitionProducers {
    private static final ConcurrentHashMap BY_ID = new ConcurrentHashMap();
    private static final ConcurrentHashMap LOCKS = new ConcurrentHashMap();
    /** A producer has a thread and connections: beyond so many, those are closed that have no transaction for a while. */
    private static final int KEPT = 256;
    private static final long UNUSED_MS = 30000;

    private PartitionProducers() { }

    private static String key(WriterSettings settings, String id) {
        return settings.instance + "\n" + id;
    }

    /**
     * The producer of a set of partitions, which knows what is committed of them: one that is there, if as far as it knows
     * that is what was planned with. task: Spark's id of the attempt that asks; NONE: the driver, between batches. Raises
     * ProducerFencedException where a newer one has it.
     */
    static PartitionProducer of(WriterSettings settings, PartitionSet set, long task) throws Exception {
        PartitionProducer producer;
        // Of two producers that open an id side by side, each fences or closes the other.
        synchronized (lock(key(settings, set.id))) {
            producer = unlessChanged(settings, set, task);
            if (producer == null) {
                producer = open(settings, set.id);
                producer.claim(task);
            }
        }
        boolean owns = false;
        try {
            producer.own(set.ranges);
            owns = true;
        } finally {
            if (!owns) {
                discard(settings, set.id, producer);
            }
        }
        return producer;
    }

    private static Object lock(String key) {
        Object created = new Object();
        Object other = LOCKS.putIfAbsent(key, created);
        return other == null ? created : other;
    }

    private static PartitionProducer unlessChanged(WriterSettings settings, PartitionSet set, long task) {
        PartitionProducer kept = kept(settings, set.id);
        if (kept == null) {
            return null;
        }
        kept.claim(task);
        if (kept.isAsPlanned(set.ranges) && (kept.isOpen() || kept.idleMs() < settings.keptMs)) {
            return kept;
        }
        discard(settings, set.id, kept);
        return null;
    }

    private static PartitionProducer open(WriterSettings settings, String id) {
        PartitionProducer opened = new PartitionProducer(settings, id);
        BY_ID.put(key(settings, id), opened);
        closeIdle();
        return opened;
    }

    /** The producer of a transactional id; null: there is none here. */
    static PartitionProducer kept(WriterSettings settings, String id) {
        return (PartitionProducer) BY_ID.get(key(settings, id));
    }

    /** Gives a producer up whose transaction failed. */
    static void discard(WriterSettings settings, String id, PartitionProducer failed) {
        BY_ID.remove(key(settings, id), failed);
        failed.close();
    }

    private static void closeIdle() {
        for (Iterator all = BY_ID.entrySet().iterator(); all.hasNext() && BY_ID.size() > KEPT;) {
            java.util.Map.Entry entry = (java.util.Map.Entry) all.next();
            PartitionProducer producer = (PartitionProducer) entry.getValue();
            // Another task may just have got it, and not begun.
            boolean isUnused = !producer.isOpen() && producer.idleMs() > UNUSED_MS;
            if (isUnused && BY_ID.remove(entry.getKey(), producer)) {
                producer.close();
            }
        }
    }

    /** Closes those of an instance of the job in this JVM, and aborts what they have open. */
    public static void close(String instance) {
        for (Iterator all = LOCKS.keySet().iterator(); all.hasNext();) {
            String key = (String) all.next();
            if (key.startsWith(instance + "\n")) {
                all.remove();
                PartitionProducer producer = (PartitionProducer) BY_ID.remove(key);
                if (producer != null) {
                    producer.closeInOrder();
                }
            }
        }
        Executors.close(instance);
        KnownTask.forget(instance);
    }
}
