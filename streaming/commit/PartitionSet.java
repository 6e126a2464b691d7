package lockkeeper;

import java.util.ArrayList;
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

    public int index() {
        return index;
    }

    /** What Java must add where it implements a trait of Scala's. */
    public boolean org$apache$spark$Partition$$super$equals(Object other) {
        return super.equals(other);
    }
}
