package lockkeeper;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;

/** What is counted of decisions by the table, as a worker counts what it decides: streaming/ops/tally.py. */
final class KnownCounts {
    private static final int TRACES = 8; // of an Arrow batch there
    private static final int LOOKED_AT = 64;
    private static final int TRACE_CHARACTERS = 64;

    private final Map outcomes = new HashMap(); // counts by label
    private final Map ages = new HashMap(); // counts by ms
    private final List traces = new ArrayList();
    private int records;
    private long lastAge;
    private int[] ofLastAge; // a broker dates the records of a batch alike

    void add(KnownDecision decision, long age) {
        count(outcomes, decision.label)[0]++;
        if (ofLastAge == null || age != lastAge) {
            lastAge = age;
            ofLastAge = count(ages, Long.valueOf(age));
        }
        ofLastAge[0]++;
        String trace = records++ < LOOKED_AT && traces.size() < TRACES ? decision.trace() : null;
        if (trace != null) {
            traces.add(trace.substring(0, Math.min(trace.length(), TRACE_CHARACTERS)));
        }
    }

    private static int[] count(Map counts, Object of) {
        int[] count = (int[]) counts.get(of);
        if (count == null) {
            count = new int[1];
            counts.put(of, count);
        }
        return count;
    }

    boolean isEmpty() {
        return records == 0;
    }

    /**
     * `SideOutput` in streaming/commit/evaluation.py, as JSON. share: of the budget that is used; stopped: it is used up, and
     * nothing is decided from `end` on.
     */
    String sideOutput(PartitionRange range, long first, long end, boolean stopped, double share) {
        List counted = new ArrayList();
        for (Iterator each = outcomes.entrySet().iterator(); each.hasNext();) {
            Map.Entry entry = (Map.Entry) each.next();
            String[] systemAndOutcome = ((String) entry.getKey()).split(" ");
            counted.add(new Object[] {systemAndOutcome[0], systemAndOutcome[1], number(entry)});
        }
        List aged = new ArrayList();
        for (Iterator each = ages.entrySet().iterator(); each.hasNext();) {
            aged.add(number((Map.Entry) each.next()));
        }
        Object[] tally = {range.topic, counted, Integer.valueOf(0), ages.keySet(), aged, traces};
        Object[] decided = {
            Integer.valueOf(range.partition), Long.valueOf(first), Long.valueOf(end), Boolean.valueOf(stopped),
            Double.valueOf(share)};
        List none = Collections.EMPTY_LIST;
        try {
            return KnownTask.JSON.writeValueAsString(new Object[] {tally, none, none, decided});
        } catch (IOException impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    private static Integer number(Map.Entry entry) {
        return Integer.valueOf(((int[]) entry.getValue())[0]);
    }
}
