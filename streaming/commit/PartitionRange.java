package lockkeeper;

import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.common.TopicPartition;
import org.apache.spark.Partition;

/** An input partition to decide: what is committed of it (-1: nothing), and Spark's partition that reads it, if any. */
final class PartitionRange implements Partition {
    final String topic;
    final int partition;
    final long committed;
    private int index;
    private final List parents = new ArrayList();

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

    /** A name of a topic has no slash: so no two jobs and partitions have the same id, whatever the job is called. */
    String transactionalId(String job) {
        return job + "/" + topic + "/" + partition;
    }

    void readBy(Partition parent) {
        if (!parents.isEmpty()) { // of two tasks each would have a budget, and the first may stop before its end
            throw new IllegalStateException("several of Spark's partitions read " + topicPartition());
        }
        parents.add(parent);
    }

    List parents() {
        return parents;
    }

    PartitionRange at(int number) {
        index = number;
        return this;
    }

    public int index() {
        return index;
    }

    /** What Java must add where it implements a trait of Scala's. */
    public boolean org$apache$spark$Partition$$super$equals(Object other) {
        return super.equals(other);
    }
}
