package lockkeeper;

import java.io.Serializable;
import org.apache.kafka.common.TopicPartition;
import org.apache.spark.Partition;

/**
 * An input partition to decide: what is committed of it (-1: nothing), up to where it is to be decided (-1: anywhere), and
 * Spark's partition that reads it, if any.
 */
final class PartitionRange implements Serializable {
    final String topic;
    final int partition;
    final long committed;
    private final long end;
    private Partition parent;

    /** line: topic, partition, committed offset and end, which need not be there, with tabs between them. */
    PartitionRange(String line) {
        String[] fields = line.split("\t");
        topic = fields[0];
        partition = Integer.parseInt(fields[1]);
        committed = Long.parseLong(fields[2]);
        end = fields.length > 3 ? Long.parseLong(fields[3]) : -1;
    }

    TopicPartition topicPartition() {
        return new TopicPartition(topic, partition);
    }

    /** from: the first offset that it reads; until: the first one that it does not. */
    void readBy(Partition reader, long from, long until) {
        if (parent != null) { // of two tasks each would have a budget, and the first may stop before its end
            throw new IllegalStateException("several of Spark's partitions read " + topicPartition());
        }
        if (from > Math.max(committed, 0)) { // what lies between would count as decided
            throw new IllegalStateException(
                "Spark reads " + topicPartition() + " from offset " + from + " on, and only what is below " + committed
                    + " is decided");
        }
        checkEnd(until);
        parent = reader;
    }

    /** What is not read counts as decided. */
    void checkRead() {
        if (parent == null && end > Math.max(committed, 0)) {
            checkEnd(Math.max(committed, 0));
        }
    }

    /** Spark reads what it has proposed, and what is committed is the end of the checkpoint, which others may write to. */
    private void checkEnd(long until) {
        if (end >= 0 && until != end) {
            throw new IllegalStateException(
                "Spark reads " + topicPartition() + " up to offset " + until + ", and its checkpoint says " + end
                    + ": does another job have the same checkpoint?");
        }
    }

    /** null: nothing of it is read. */
    Partition parent() {
        return parent;
    }
}
