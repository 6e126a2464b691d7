package lockkeeper;

import java.util.concurrent.TimeoutException;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.config.ConfigException;
import org.apache.kafka.common.errors.InvalidPidMappingException;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.InvalidTxnStateException;
import org.apache.kafka.common.errors.OutOfOrderSequenceException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.errors.TransactionAbortableException;
import org.apache.kafka.common.errors.TransactionAbortedException;
import org.apache.kafka.common.errors.UnknownServerException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;

/** What an error of Kafka's says about the next attempt. */
public final class Failures {
    private Failures() { }

    /** Whether the brokers did not answer, or could not serve: the same may succeed later. */
    public static boolean isUnavailable(Throwable error) {
        boolean unavailable = false;
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (cause instanceof UnknownTopicOrPartitionException || cause instanceof OffsetOutOfRangeException) {
                return false;
            }
            unavailable |= cause instanceof RetriableException
                || cause instanceof TimeoutException
                || cause instanceof InvalidTxnStateException
                || cause instanceof InvalidPidMappingException
                || cause instanceof TransactionAbortedException
                || cause instanceof TransactionAbortableException // KIP-890: to be aborted, and sent again
                || cause instanceof OutOfOrderSequenceException
                || cause instanceof UnknownServerException
                // Not a fault of the settings, which were right when the job started.
                || (cause instanceof ConfigException && cause.getMessage().contains("No resolvable bootstrap urls"));
        }
        return unavailable;
    }

    /** A status of PartitionResult; -1: the error is none of Kafka's. */
    static int statusOf(Throwable error) {
        boolean ofKafka = false;
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (cause instanceof ProducerFencedException || cause instanceof InvalidProducerEpochException) {
                return PartitionResult.FENCED;
            }
            ofKafka |= cause instanceof KafkaException;
        }
        if (isUnavailable(error)) {
            return PartitionResult.UNAVAILABLE;
        }
        return ofKafka ? PartitionResult.REFUSED : -1;
    }

    static String chain(Throwable error) {
        StringBuilder text = new StringBuilder();
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            text.append(text.length() == 0 ? "" : ", because of ").append(cause.toString());
        }
        return text.toString();
    }
}
