package lockkeeper;

import java.io.Serializable;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.rdd.RDD;
import scala.runtime.AbstractFunction2;

/**
 * Runs an RDD of byte arrays, as RDD.collect does. That has Spark look through closures of its own for what need not be sent
 * (ClosureCleaner), by the bytecode of the whole class RDD, with every job: an eighth of what a batch of a few records
 * takes of the query's thread.
 */
final class Collect extends AbstractFunction2 implements Serializable {
    private Collect() { }

    /** What the tasks return, in the order of the partitions. */
    static byte[][] all(RDD results) {
        Object byTask = results.sparkContext().runJob(
            results, new Collect(), scala.reflect.ClassTag$.MODULE$.apply(byte[][].class));
        List all = new ArrayList();
        for (int task = 0; task < ((byte[][][]) byTask).length; task++) {
            all.addAll(java.util.Arrays.asList((Object[]) ((byte[][][]) byTask)[task]));
        }
        return (byte[][]) all.toArray(new byte[all.size()][]);
    }

    /** In a task. */
    public Object apply(Object context, Object results) {
        List all = new ArrayList();
        scala.collection.Iterator each = (scala.collection.Iterator) results;
        while (each.hasNext()) {
            all.add(each.next());
        }
        return all.toArray(new byte[all.size()][]);
    }
}
