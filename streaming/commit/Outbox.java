package lockkeeper;

import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.errors.InterruptException;

/** Records to send, in the order of the input records that they come from. */
interface Outbox {
    /** The offset of the input record of the next one; Long.MAX_VALUE: there is none. */
    long offset();

    /** Removes and returns the next one. */
    ProducerRecord take();
}

/** Sends what is in several of them in one order: decisions with one key come in the order of their requests. */
final class Outboxes {
    private Outboxes() { }

    /** end: of the input records, those before this offset. */
    static void send(Producer producer, List boxes, long end) {
        while (true) {
            Outbox first = null;
            long lowest = end;
            for (int number = 0; number < boxes.size(); number++) {
                long offset = ((Outbox) boxes.get(number)).offset();
                if (offset < lowest) {
                    lowest = offset;
                    first = (Outbox) boxes.get(number);
                }
            }
            if (first == null) {
                return;
            }
            Future result = producer.send(first.take());
            if (result.isDone()) {
                raiseFailure(result);
            }
        }
    }

    /** Else each further record would wait max.block.ms for what the first one has waited for, such as metadata. */
    private static void raiseFailure(Future result) {
        try {
            result.get();
        } catch (ExecutionException failure) {
            throw (RuntimeException) failure.getCause(); // the producer wraps nothing else
        } catch (InterruptedException interrupted) {
            throw new InterruptException(interrupted);
        }
    }
}
