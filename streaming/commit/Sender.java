import java.lang.reflect.Field;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeoutException;
import net.jpountz.lz4.LZ4Factory;
import net.jpountz.lz4.LZ4SafeDecompressor;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigException;
import org.apache.kafka.common.errors.InterruptException;
import org.apache.kafka.common.errors.InvalidPidMappingException;
import org.apache.kafka.common.errors.InvalidTxnStateException;
import org.apache.kafka.common.errors.OutOfOrderSequenceException;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.errors.TransactionAbortableException;
import org.apache.kafka.common.errors.TransactionAbortedException;
import org.apache.kafka.common.errors.UnknownServerException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * The per-record work of a batch that follows the workers, in Spark's own JVM: unpacks columnar batches and hands their
 * records to Kafka's producer. streaming/records/packing.py packs them and describes the format. Everything else about a
 * transaction is in streaming/commit/transaction.py, which calls the producer itself.
 *
 * Compiled when a job starts, by the compiler that Spark brings for the code it generates.
 */
public final class Sender {
    private static final int SIZE_BYTES = 8;

    private final Producer producer;
    private final LZ4SafeDecompressor decompressor = LZ4Factory.fastestInstance().safeDecompressor();

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

    /**
     * Sends the columnar batches in a column of the rows; null: none. Those of one Arrow batch begin with the row in
     * which the column `beginning` is not null; their records are sent in the order of their positions.
     */
    public void sendAll(List rows, int column, int beginning) {
        List batches = new ArrayList();
        for (int number = 0; number < rows.size(); number++) {
            if (cell(rows, number, beginning) != null) {
                sendInOrder(batches);
                batches.clear();
            }
            byte[] packed = cell(rows, number, column);
            if (packed != null) {
                batches.add(unpack(packed));
            }
        }
        sendInOrder(batches);
    }

    /** The rows of those Arrow batches for which there is a 1; they begin as in sendAll. */
    public List kept(List rows, int beginning, byte[] kept) {
        List found = new ArrayList();
        int batch = -1;
        for (int number = 0; number < rows.size(); number++) {
            batch += cell(rows, number, beginning) == null ? 0 : 1;
            if (kept[batch] == 1) {
                found.add(rows.get(number));
            }
        }
        return found;
    }

    static byte[] cell(List rows, int number, int column) {
        return ((byte[][]) rows.get(number))[column];
    }

    /** Sends a columnar batch. What Kafka refuses later, it reports when the transaction is committed. */
    public void send(byte[] packed) {
        sendInOrder(Collections.singletonList(unpack(packed)));
    }

    private ColumnarBatch unpack(byte[] packed) {
        ByteBuffer head = ByteBuffer.wrap(packed).order(ByteOrder.LITTLE_ENDIAN);
        byte[] plain = new byte[Math.toIntExact(head.getLong())];
        decompressor.decompress(packed, SIZE_BYTES, packed.length - SIZE_BYTES, plain, 0);
        return new ColumnarBatch(ByteBuffer.wrap(plain).order(ByteOrder.LITTLE_ENDIAN));
    }

    /** Always sends the record with the lowest position of all that are next in their columnar batches. */
    private void sendInOrder(List batches) {
        int[] sent = new int[batches.size()];
        while (true) {
            int next = -1;
            int lowest = Integer.MAX_VALUE;
            for (int number = 0; number < sent.length; number++) {
                ColumnarBatch batch = (ColumnarBatch) batches.get(number);
                if (sent[number] < batch.records && (next < 0 || batch.positions[sent[number]] < lowest)) {
                    next = number;
                    lowest = batch.positions[sent[number]];
                }
            }
            if (next < 0) {
                return;
            }
            send((ColumnarBatch) batches.get(next), sent[next]++);
        }
    }

    private void send(ColumnarBatch batch, int record) {
        Future sent = producer.send(new ProducerRecord(
            batch.topic, null, null, batch.keys.bytes(record), batch.value(record), batch.headers(record)));
        if (sent.isDone()) {
            raiseFailure(sent);
        }
    }

    /** Else each further record would wait max.block.ms for what the first one has waited for, such as metadata. */
    private static void raiseFailure(Future sent) {
        try {
            sent.get();
        } catch (ExecutionException failure) {
            throw (RuntimeException) failure.getCause(); // the producer wraps nothing else
        } catch (InterruptedException interrupted) {
            throw new InterruptException(interrupted);
        }
    }

    /**
     * What is in this column of the rows, which is MessagePack where it is not null, as one array of MessagePack: from
     * this byte of it on, and no more than `most`.
     */
    public byte[] sideOutputs(List rows, int column, int start, int most) {
        byte[] whole = sideOutputs(rows, column);
        return Arrays.copyOfRange(whole, start, (int) Math.min((long) start + most, whole.length));
    }

    private static byte[] sideOutputs(List rows, int column) {
        int count = 0;
        int size = 5;
        for (int number = 0; number < rows.size(); number++) {
            byte[] cell = cell(rows, number, column);
            count += cell == null ? 0 : 1;
            size = Math.addExact(size, cell == null ? 0 : cell.length);
        }
        ByteBuffer all = ByteBuffer.allocate(size).put((byte) 0xdd).putInt(count);
        for (int number = 0; number < rows.size(); number++) {
            byte[] cell = cell(rows, number, column);
            if (cell != null) {
                all.put(cell);
            }
        }
        return all.array();
    }

    /**
     * Offsets to commit, from lines of topic, partition, offset and metadata, with tabs between them. Metadata ends with
     * a NUL, as it does where librdkafka's clients commit it: they read it back up to there, however long it is.
     */
    public Map offsets(String lines) {
        Map offsets = new HashMap();
        for (String line : lines.split("\n")) {
            String[] fields = line.split("\t", 4);
            TopicPartition partition = new TopicPartition(fields[0], Integer.parseInt(fields[1]));
            offsets.put(partition, new OffsetAndMetadata(Long.parseLong(fields[2]), fields[3] + "\0"));
        }
        return offsets;
    }
}

/** Records for one topic. A value is a chain of parts: texts that many records share, or that are a record's own. */
final class ColumnarBatch {
    static final int EACH = -1;
    static final int ONE = -2;

    final String topic;
    final int records;
    final Texts keys;
    final RecordHeaders usual;
    final Texts headers;
    final int[] positions;
    final Part[] parts;

    ColumnarBatch(ByteBuffer in) {
        topic = text(in);
        usual = headers(in);
        keys = new Texts(in);
        records = keys.lengths.length;
        headers = new Texts(in);
        positions = Texts.numbers(in, records);
        Texts[] columns = new Texts[in.getInt()];
        for (int number = 0; number < columns.length; number++) {
            columns[number] = new Texts(in);
        }
        int[][] indices = new int[in.getInt()][];
        for (int number = 0; number < indices.length; number++) {
            indices[number] = Texts.numbers(in, records);
        }
        parts = new Part[in.getInt()];
        for (int number = 0; number < parts.length; number++) {
            Texts texts = columns[in.getInt()];
            int index = in.getInt();
            parts[number] = new Part(texts, index < 0 ? null : indices[index], index == EACH);
        }
    }

    /** The value of a record; null where its first part is. */
    byte[] value(int record) {
        if (parts[0].texts.isNull(parts[0].entry(record))) {
            return null;
        }
        int size = 0;
        for (int number = 0; number < parts.length; number++) {
            size += parts[number].texts.length(parts[number].entry(record));
        }
        byte[] value = new byte[size];
        int end = 0;
        for (int number = 0; number < parts.length; number++) {
            end = parts[number].texts.copy(parts[number].entry(record), value, end);
        }
        return value;
    }

    RecordHeaders headers(int record) {
        byte[] own = headers.bytes(record);
        return own == null ? usual : headers(ByteBuffer.wrap(own).order(ByteOrder.LITTLE_ENDIAN));
    }

    static RecordHeaders headers(ByteBuffer in) {
        RecordHeaders headers = new RecordHeaders();
        for (int left = in.getInt(); left > 0; left--) {
            headers.add(new RecordHeader(text(in), bytes(in)));
        }
        return headers;
    }

    static String text(ByteBuffer in) {
        return new String(bytes(in), StandardCharsets.UTF_8);
    }

    static byte[] bytes(ByteBuffer in) {
        byte[] bytes = new byte[in.getInt()];
        in.get(bytes);
        return bytes;
    }
}

/** A piece of all values of a columnar batch: which of the texts each record has, by number. */
final class Part {
    final Texts texts;
    final int[] indices;
    final boolean each;

    Part(Texts texts, int[] indices, boolean each) {
        this.texts = texts;
        this.indices = indices;
        this.each = each;
    }

    int entry(int record) {
        return indices != null ? indices[record] : each ? record : 0;
    }
}

/** A column of texts, some of which may be null. */
final class Texts {
    final byte[] all;
    final int[] lengths;
    final int[] starts;

    Texts(ByteBuffer in) {
        lengths = numbers(in, in.getInt());
        starts = new int[lengths.length];
        all = in.array();
        int start = in.position();
        for (int number = 0; number < lengths.length; number++) {
            starts[number] = start;
            start += length(number);
        }
        in.position(start);
    }

    static int[] numbers(ByteBuffer in, int count) {
        int[] numbers = new int[count];
        in.asIntBuffer().get(numbers);
        in.position(in.position() + 4 * count);
        return numbers;
    }

    boolean isNull(int number) {
        return number < 0 || lengths[number] < 0;
    }

    int length(int number) {
        return isNull(number) ? 0 : lengths[number];
    }

    byte[] bytes(int number) {
        return isNull(number) ? null : Arrays.copyOfRange(all, starts[number], starts[number] + lengths[number]);
    }

    /** Copies a text to a place in an array, and returns the place behind it. */
    int copy(int number, byte[] to, int place) {
        int length = length(number);
        if (length > 0) {
            System.arraycopy(all, starts[number], to, place, length);
        }
        return place + length;
    }
}
