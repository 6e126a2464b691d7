package lockkeeper;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import net.jpountz.lz4.LZ4Factory;
import net.jpountz.lz4.LZ4SafeDecompressor;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.errors.InterruptException;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.header.internals.RecordHeaders;

/**
 * Records for one topic, as streaming/records/packing.py packs them and describes them. A value is a chain of parts: texts
 * that many records share, or that are a record's own.
 */
final class ColumnarBatch {
    static final int EACH = -1;
    static final int ONE = -2;

    private static final int SIZE_BYTES = 8;
    private static final LZ4SafeDecompressor DECOMPRESSOR = LZ4Factory.fastestInstance().safeDecompressor();

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

    static ColumnarBatch unpack(byte[] packed) {
        ByteBuffer head = ByteBuffer.wrap(packed).order(ByteOrder.LITTLE_ENDIAN);
        byte[] plain = new byte[Math.toIntExact(head.getLong())];
        DECOMPRESSOR.decompress(packed, SIZE_BYTES, packed.length - SIZE_BYTES, plain, 0);
        return new ColumnarBatch(ByteBuffer.wrap(plain).order(ByteOrder.LITTLE_ENDIAN));
    }

    /**
     * Sends the records of an Arrow batch's columnar batches: always the one with the lowest position of all that are
     * next in theirs, so that decisions with one key come in the order of their requests.
     */
    static void send(Producer producer, List batches) {
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
            ColumnarBatch batch = (ColumnarBatch) batches.get(next);
            int record = sent[next]++;
            Future result = producer.send(new ProducerRecord(
                batch.topic, null, null, batch.keys.bytes(record), batch.value(record), batch.headers(record)));
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
