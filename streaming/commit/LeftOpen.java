package lockkeeper;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.EnumSet;
import java.util.Iterator;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.FenceProducersResult;
import org.apache.kafka.clients.admin.ListTransactionsOptions;
import org.apache.kafka.clients.admin.TransactionListing;
import org.apache.kafka.clients.admin.TransactionState;

/** Transactions of input partitions that a run before this one has left open. */
public final class LeftOpen {
    private static final int SECONDS = 30;
    /** Behind the job's name and a slash: see streaming/commit/partition_sets.py. More slashes are of another job's name. */
    private static final Pattern OF_A_JOB = Pattern.compile("[^/]+/[0-9]+|[0-9]+-of-[0-9]+");

    private LeftOpen() { }

    /**
     * Aborts them: until they end, which is at the latest by their timeout, the offsets that they would commit cannot be
     * read. Returns how many there were.
     */
    public static int abort(Properties settings, String job) throws Exception {
        Admin admin = Admin.create(settings);
        try {
            ListTransactionsOptions options = new ListTransactionsOptions()
                .filterStates(EnumSet.of(TransactionState.ONGOING));
            Collection open = (Collection) admin.listTransactions(options).all().get(SECONDS, TimeUnit.SECONDS);
            List calls = new ArrayList(); // an id each: of several in one call each takes half a second
            calls.add(admin.fenceProducers(Collections.singleton(job + "/"))); // fails where the job may not write
            for (Iterator each = open.iterator(); each.hasNext();) {
                String id = ((TransactionListing) each.next()).transactionalId();
                if (id.startsWith(job + "/") && OF_A_JOB.matcher(id.substring(job.length() + 1)).matches()) {
                    calls.add(admin.fenceProducers(Collections.singleton(id)));
                }
            }
            for (Iterator each = calls.iterator(); each.hasNext();) {
                ((FenceProducersResult) each.next()).all().get(SECONDS, TimeUnit.SECONDS);
            }
            return calls.size() - 1;
        } finally {
            admin.close(Duration.ZERO);
        }
    }
}
