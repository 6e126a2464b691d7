package lockkeeper;

import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.execution.streaming.checkpointing.OffsetSeqBase;
import org.apache.spark.sql.execution.streaming.checkpointing.OffsetSeqLog;
import scala.Option;

/** Reads Spark's log of offsets by one call of Py4J: each takes 0.1 ms, and a batch waits for this. */
public final class OffsetLog {
    private OffsetLog() { }

    /** Where a batch of a query with one source ends, as JSON; "": its source has no offsets yet; null: no such batch. */
    public static String end(OffsetSeqLog log, long batch) {
        Option entry = log.get(batch);
        if (!entry.isDefined()) {
            return null;
        }
        Option offset = (Option) ((OffsetSeqBase) entry.get()).offsets().apply(0);
        return offset.isDefined() ? ((Offset) offset.get()).json() : "";
    }
}
