package lockkeeper;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.api.python.SimplePythonFunction;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.types.DataTypeUtils;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.LogicalRDD;
import org.apache.spark.sql.execution.RDDScanExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.python.MapInArrowExec;
import org.apache.spark.sql.execution.python.UserDefinedPythonFunction;
import org.apache.spark.sql.types.StructType;
import scala.Option;

/**
 * The physical plan that runs the workers over the records of a batch, as DataFrame.mapInArrow would be planned. It is
 * the same for every batch, so Spark's analyzer, optimizer and planner have nothing to add but their time; nor is the
 * plan described to Spark's listeners a second time within the micro-batch.
 *
 * Called by streaming/commit/evaluation.py. The classes of this folder are compiled when a job starts, by the compiler that
 * Spark brings for the code it generates, and go to the executors in a jar: see streaming/commit/java_classes.py.
 */
public final class Evaluation {
    private final SimplePythonFunction template;
    private final StructType schema;
    private final int evalType;

    /** template: how Python workers are started; its command and broadcasts are not used. */
    public Evaluation(SimplePythonFunction template, StructType schema, int evalType) {
        this.template = template;
        this.schema = schema;
        this.evalType = evalType;
    }

    /** The plan that runs the pickled function over the records. */
    public SparkPlan plan(Dataset records, byte[] function, List broadcasts) {
        SparkSession.setActiveSession(records.sparkSession());
        SparkPlan scan = scan(records);
        SimplePythonFunction python = new SimplePythonFunction(
            function, template.envVars(), template.pythonIncludes(), template.pythonExec(), template.pythonVer(),
            broadcasts, template.accumulator());
        UserDefinedPythonFunction udf = new UserDefinedPythonFunction("worker", python, schema, evalType, true);
        return new MapInArrowExec(
            udf.builder(scan.output()), DataTypeUtils.toAttributes(schema), scan, false, Option.empty());
    }

    /** Spark hands a micro-batch over as an RDD of its own plan, which needs no planning. */
    private static SparkPlan scan(Dataset records) {
        LogicalPlan plan = records.queryExecution().analyzed();
        if (!(plan instanceof LogicalRDD)) {
            return records.queryExecution().executedPlan();
        }
        LogicalRDD batch = (LogicalRDD) plan;
        return new RDDScanExec(
            batch.output(), batch.rdd(), "micro-batch", batch.outputPartitioning(), batch.outputOrdering(),
            batch.stream());
    }

    /** Runs a plan over the input partitions in the lines, which are as PartitionRange reads them; see PartitionTask. */
    public static byte[][] decide(SparkPlan plan, WriterSettings settings, String lines) {
        RDD rows = plan.execute();
        byte[][] results = (byte[][]) new DecidedPartitions(rows, DecidedPartitions.ranges(rows, lines), settings).collect();
        return new byte[][] {PartitionResult.together(results)};
    }

    /** Runs a plan of binary columns. The rows: each an array of its cells, null where a cell is. */
    public static List collect(SparkPlan plan) {
        InternalRow[] rows = plan.executeCollect();
        List found = new ArrayList(rows.length);
        for (int number = 0; number < rows.length; number++) {
            byte[][] cells = new byte[rows[number].numFields()][];
            for (int column = 0; column < cells.length; column++) {
                cells[column] = rows[number].isNullAt(column) ? null : rows[number].getBinary(column);
            }
            found.add(cells);
        }
        return found;
    }
}
