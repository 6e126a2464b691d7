package lockkeeper;

import java.util.ArrayList;
import java.util.Collections;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.Partition;

/**
 * The input partitions of a batch that share a transactional id: one task decides them, one after the other, in one
 * transaction. Which ones share an id says streaming/commit/partition_sets.py.
 */
final class PartitionSet implements Partition {
    final String id;
    final List ranges = new ArrayList();
    private final int index;

    PartitionSet(String id, int index) {
        this.id = id;
        this.index = index;
    }

    /** lines: the transactional id, then as PartitionRange reads them, with tabs between them. */
    static PartitionSet[] parse(String lines) {
        Map byId = new LinkedHashMap();
        String[] all = lines.split("\n");
        for (int number = 0; number < all.length; number++) {
            String[] fields = all[number].split("\t", 2);
            of(byId, fields[0]).ranges.add(new PartitionRange(fields[1]));
        }
        return (PartitionSet[]) byId.values().toArray(new PartitionSet[byId.size()]);
    }

    private static PartitionSet of(Map byId, String id) {
        PartitionSet set = (PartitionSet) byId.get(id);
        if (set == null) {
            set = new PartitionSet(id, byId.size());
            byId.put(id, set);
        }
        return set;
    }

    /** The indices of Spark's partitions that are read. */
    int[] parents() {
        List read = new ArrayList();
        for (Iterator each = ranges.iterator(); each.hasNext();) {
            Partition parent = ((PartitionRange) each.next()).parent();
            if (parent != null) {
                read.add(parent);
            }
        }
        int[] indices = new int[read.size()];
        for (int number = 0; number < indices.length; number++) {
            indices[number] = ((Partition) read.get(number)).index();
        }
        return indices;
    }

    /**
     * Where the task is to run, of the executors that there are: the one of the last batch, which has the producer and
     * Kafka's consumers. Partitions of a topic, and sets, are numbered one after the other, so that executors get as many
     * each: a task waits for its executor (spark.locality.wait) while another one is idle.
     */
    List preferred(String[] executors) {
        if (executors.length == 0) {
            return Collections.EMPTY_LIST;
        }
        int slash = id.lastIndexOf('/');
        String number = id.substring(slash + 1).split("-")[0];
        int hash = id.substring(0, slash).hashCode() + Integer.parseInt(number);
        return Collections.singletonList(executors[Math.floorMod(hash, executors.length)]);
    }

    public int index() {
        return index;
    }

    /** What Java must add where it implements a trait of Scala's. */
    public boolean org$apache$spark$Partition$$super$equals(Object other) {
        return super.equals(other);
    }
}
