package lockkeeper;

import java.io.IOException;
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
        return workers(scan(records), function, broadcasts);
    }

    private SparkPlan workers(SparkPlan scan, byte[] function, List broadcasts) {
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

    /**
     * Decides the input partitions in the lines, which are as PartitionSet reads them: by the answers that are known, if a
     * task says how, else by the pickled function; see PartitionTask.
     */
    public byte[][] decide(
            Dataset records, byte[] function, List broadcasts, WriterSettings settings, String lines, byte[] knownTask)
            throws IOException {
        SparkSession.setActiveSession(records.sparkSession());
        SparkPlan scan = scan(records);
        UndecidedRows undecided = new UndecidedRows(rows(records, scan), false);
        SparkPlan plan = new RDDScanExec(
            DataTypeUtils.toAttributes(InputRecord.SCHEMA), undecided, "undecided", scan.outputPartitioning(),
            scan.outputOrdering(), Option.empty());
        RDD workers = workers(plan, function, broadcasts).execute();
        KnownTask task = knownTask == null ? null : KnownTask.read(settings.instance, knownTask);
        PartitionSet[] sets = DecidedPartitions.sets(workers, lines);
        byte[][] results = Collect.all(new DecidedPartitions(workers, undecided, sets, settings, task));
        return new byte[][] {PartitionResult.together(results)};
    }

    /** Of a micro-batch as Spark has them: its scan would copy each. */
    private static RDD rows(Dataset records, SparkPlan scan) {
        LogicalPlan plan = records.queryExecution().analyzed();
        return plan instanceof LogicalRDD ? ((LogicalRDD) plan).rdd() : scan.execute();
    }

    /** Runs a plan of binary columns. The rows: each an array of its cells, null where a cell is. */
    public static List collect(SparkPlan plan) {
        InternalRow[] rows = plan.executeCollect();
        List table = new ArrayList(rows.length);
        for (int number = 0; number < rows.length; number++) {
            byte[][] cells = new byte[rows[number].numFields()][];
            for (int column = 0; column < cells.length; column++) {
                cells[column] = rows[number].isNullAt(column) ? null : rows[number].getBinary(column);
            }
            table.add(cells);
        }
        return table;
    }
}
