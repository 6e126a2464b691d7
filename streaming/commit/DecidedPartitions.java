package lockkeeper;

import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.TopicPartition;
import org.apache.spark.NarrowDependency;
import org.apache.spark.Partition;
import org.apache.spark.TaskContext;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.execution.datasources.v2.DataSourceRDDPartition;
import org.apache.spark.sql.kafka010.KafkaBatchInputPartition;
import org.apache.spark.sql.kafka010.KafkaSourceRDDPartition;
import scala.jdk.javaapi.CollectionConverters;
import scala.reflect.ClassTag;

/** A PartitionResult of each input partition to decide. Others of the rows are left out. */
final class DecidedPartitions extends RDD {
    private final transient PartitionRange[] ranges;
    private final WriterSettings settings;
    private final UndecidedRows rows;
    private final KnownTask known;
    private final ClassTag tag;

    /** workers: make of the rows what is decided. */
    DecidedPartitions(RDD workers, UndecidedRows rows, PartitionRange[] ranges, WriterSettings settings, KnownTask known) {
        super(
            workers.sparkContext(),
            CollectionConverters.asScala(Collections.singletonList(new ReadBy(workers, ranges))).toSeq(),
            scala.reflect.ClassTag$.MODULE$.apply(byte[].class));
        this.ranges = ranges;
        this.settings = settings;
        this.rows = rows;
        this.known = known;
        this.tag = scala.reflect.ClassTag$.MODULE$.apply(byte[].class);
    }

    /** lines: as PartitionRange reads them. Of a partition that no task of the rows reads nothing is decided. */
    static PartitionRange[] ranges(RDD rows, String lines) {
        Map byPartition = new HashMap();
        List ordered = new ArrayList();
        String[] all = lines.split("\n");
        for (int number = 0; number < all.length; number++) {
            PartitionRange range = new PartitionRange(all[number]).at(number);
            byPartition.put(range.topicPartition(), range);
            ordered.add(range);
        }
        Partition[] partitions = rows.partitions();
        for (int number = 0; number < partitions.length; number++) {
            PartitionRange range = (PartitionRange) byPartition.get(readBy(partitions[number]));
            if (range != null) {
                range.readBy(partitions[number]);
            }
        }
        return (PartitionRange[]) ordered.toArray(new PartitionRange[ordered.size()]);
    }

    /** By either version of Spark's Kafka source: `spark.sql.sources.useV1SourceList` says which reads a range. */
    private static TopicPartition readBy(Partition partition) {
        if (partition instanceof KafkaSourceRDDPartition) {
            return ((KafkaSourceRDDPartition) partition).offsetRange().topicPartition();
        }
        InputPartition input = (InputPartition) ((DataSourceRDDPartition) partition).inputPartition().get();
        return ((KafkaBatchInputPartition) input).offsetRange().topicPartition();
    }

    public Partition[] getPartitions() {
        return ranges;
    }

    public scala.collection.Iterator compute(Partition split, TaskContext context) {
        byte[] result = new PartitionTask(settings, (PartitionRange) split, known).run(rows, parent(0, tag), context);
        return CollectionConverters.asScala(Collections.singletonList(result).iterator());
    }
}

/** Each range depends on Spark's partitions that read it, and so is placed where these are. */
final class ReadBy extends NarrowDependency {
    private final int[][] parents;

    ReadBy(RDD rows, PartitionRange[] ranges) {
        super(rows);
        parents = new int[ranges.length][];
        for (int number = 0; number < ranges.length; number++) {
            parents[number] = new int[ranges[number].parents().size()];
            for (int at = 0; at < parents[number].length; at++) {
                parents[number][at] = ((Partition) ranges[number].parents().get(at)).index();
            }
        }
    }

    public scala.collection.immutable.Seq getParents(int number) {
        List indices = new ArrayList();
        for (int at = 0; at < parents[number].length; at++) {
            indices.add(Integer.valueOf(parents[number][at]));
        }
        return CollectionConverters.asScala(indices).toSeq();
    }
}
