package lockkeeper;

import java.io.Serializable;
import org.apache.kafka.common.TopicPartition;
import org.apache.spark.Partition;

/** An input partition to decide: what is committed of it (-1: nothing), and Spark's partition that reads it, if any. */
final class PartitionRange implements Serializable {
    final String topic;
    final int partition;
    final long committed;
    private Partition parent;

    /** line: topic, partition and committed offset, with tabs between them. */
    PartitionRange(String line) {
        String[] fields = line.split("\t");
        topic = fields[0];
        partition = Integer.parseInt(fields[1]);
        committed = Long.parseLong(fields[2]);
    }

    TopicPartition topicPartition() {
        return new TopicPartition(topic, partition);
    }

    /** from: the first offset that it reads. */
    void readBy(Partition reader, long from) {
        if (parent != null) { // of two tasks each would have a budget, and the first may stop before its end
            throw new IllegalStateException("several of Spark's partitions read " + topicPartition());
        }
        if (from > Math.max(committed, 0)) { // what lies between would count as decided
            throw new IllegalStateException(
                "Spark reads " + topicPartition() + " from offset " + from + " on, and only what is below " + committed
                    + " is decided");
        }
        parent = reader;
    }

    /** null: nothing of it is read. */
    Partition parent() {
        return parent;
    }
}
