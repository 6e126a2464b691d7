package lockkeeper;

import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import org.apache.spark.NarrowDependency;
import org.apache.spark.Partition;
import org.apache.spark.TaskContext;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.execution.datasources.v2.DataSourceRDDPartition;
import org.apache.spark.sql.kafka010.KafkaBatchInputPartition;
import org.apache.spark.sql.kafka010.KafkaOffsetRange;
import org.apache.spark.sql.kafka010.KafkaSourceRDDPartition;
import scala.jdk.javaapi.CollectionConverters;
import scala.reflect.ClassTag;

/** A PartitionResult of each input partition to decide. Others of the rows are left out. */
final class DecidedPartitions extends RDD {
    private final transient PartitionSet[] sets;
    private final transient String[] executors;
    private final WriterSettings settings;
    private final UndecidedRows rows;
    private final KnownTask knownTask;
    private final ClassTag tag;

    /** workers: make of the rows what is decided. */
    DecidedPartitions(RDD workers, UndecidedRows rows, PartitionSet[] sets, WriterSettings settings, KnownTask knownTask) {
        super(
            workers.sparkContext(),
            CollectionConverters.asScala(Collections.singletonList(new ReadBy(workers, sets))).toSeq(),
            scala.reflect.ClassTag$.MODULE$.apply(byte[].class));
        this.sets = sets;
        this.executors = Executors.all();
        this.settings = settings;
        this.rows = rows;
        this.knownTask = knownTask;
        this.tag = scala.reflect.ClassTag$.MODULE$.apply(byte[].class);
    }

    /** lines: as PartitionSet reads them. Of a partition that no task of the rows reads nothing is decided. */
    static PartitionSet[] sets(RDD rows, String lines) {
        PartitionSet[] sets = PartitionSet.parse(lines);
        Map byPartition = new HashMap();
        for (int number = 0; number < sets.length; number++) {
            for (Iterator each = sets[number].ranges.iterator(); each.hasNext();) {
                PartitionRange range = (PartitionRange) each.next();
                byPartition.put(range.topicPartition(), range);
            }
        }
        Partition[] partitions = rows.partitions();
        for (int number = 0; number < partitions.length; number++) {
            KafkaOffsetRange read = readBy(partitions[number]);
            PartitionRange range = (PartitionRange) byPartition.get(read.topicPartition());
            if (range != null) {
                range.readBy(partitions[number], read.fromOffset(), read.untilOffset());
            }
        }
        for (Iterator each = byPartition.values().iterator(); each.hasNext();) {
            ((PartitionRange) each.next()).checkRead();
        }
        return sets;
    }

    /** By either version of Spark's Kafka source: `spark.sql.sources.useV1SourceList` says which reads a range. */
    private static KafkaOffsetRange readBy(Partition partition) {
        if (partition instanceof KafkaSourceRDDPartition) {
            return ((KafkaSourceRDDPartition) partition).offsetRange();
        }
        InputPartition input = (InputPartition) ((DataSourceRDDPartition) partition).inputPartition().get();
        return ((KafkaBatchInputPartition) input).offsetRange();
    }

    /** What a partition of Spark's source reads, whatever is committed of it. */
    static PartitionRange rangeOf(Partition partition) {
        KafkaOffsetRange read = readBy(partition);
        return new PartitionRange(read.topic() + "\t" + read.partition() + "\t-1");
    }

    public Partition[] getPartitions() {
        return sets;
    }

    public scala.collection.immutable.Seq getPreferredLocations(Partition split) {
        return CollectionConverters.asScala(((PartitionSet) split).preferred(executors)).toSeq();
    }

    public scala.collection.Iterator compute(Partition split, TaskContext context) {
        List results = new PartitionTask(settings, (PartitionSet) split, knownTask).run(rows, parent(0, tag), context);
        return CollectionConverters.asScala(results.iterator());
    }
}

/** Each set depends on Spark's partitions that read it. */
final class ReadBy extends NarrowDependency {
    private final int[][] parents;

    ReadBy(RDD rows, PartitionSet[] sets) {
        super(rows);
        parents = new int[sets.length][];
        for (int number = 0; number < sets.length; number++) {
            parents[number] = sets[number].parents();
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
