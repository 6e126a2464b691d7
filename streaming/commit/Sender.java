package lockkeeper;

import java.lang.reflect.Field;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * The driver's producer, and the per-record work of what it writes itself. Everything else about its transactions is in
 * streaming/commit/transaction.py, which calls the producer.
 */
public final class Sender {
    private final Producer producer;

    public Sender(Properties settings) {
        producer = new KafkaProducer(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    public Producer producer() {
        return producer;
    }

    /** Id and epoch of the producer, which Kafka's producer keeps to itself; -1 and -1 before it is initialized. */
    public List owner() throws Exception {
        Object transactions = field(producer, "transactionManager");
        Object owner = field(transactions, "producerIdAndEpoch");
        return Arrays.asList(new Object[] {field(owner, "producerId"), field(owner, "epoch")});
    }

    private static Object field(Object object, String name) throws Exception {
        Field field = object.getClass().getDeclaredField(name);
        field.setAccessible(true);
        return field.get(object);
    }

    /** Sends a columnar batch. Kafka reports what it refuses when the transaction is committed. */
    public void send(byte[] packed) {
        Outboxes.send(producer, Collections.singletonList(ColumnarBatch.unpack(packed)), Long.MAX_VALUE);
    }

    /**
     * Offsets to commit, from lines of topic, partition, offset and metadata, with tabs between them. Metadata ends with
     * a NUL, as it does where librdkafka's clients commit it: they read it back up to there, however long it is.
     */
    public static Map offsets(String lines) {
        Map offsets = new HashMap();
        for (String line : lines.split("\n")) {
            String[] fields = line.split("\t", 4);
            TopicPartition partition = new TopicPartition(fields[0], Integer.parseInt(fields[1]));
            offsets.put(partition, new OffsetAndMetadata(Long.parseLong(fields[2]), fields[3] + "\0"));
        }
        return offsets;
    }
}
