package lockkeeper;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import net.jpountz.lz4.LZ4Factory;
import net.jpountz.lz4.LZ4SafeDecompressor;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.header.internals.RecordHeaders;

/** Records for one topic, as streaming/records/packing.py packs them and describes them. */
final class ColumnarBatch implements Outbox {
    private static final int SIZE_BYTES = 8;
    private static final LZ4SafeDecompressor DECOMPRESSOR = LZ4Factory.fastestInstance().safeDecompressor();

    private final String topic;
    private final int records;
    private final Texts keys;
    private final RecordHeaders usual;
    private final Texts headers;
    private final Texts values;
    private final long[] offsets;
    private int taken;

    ColumnarBatch(ByteBuffer in) {
        topic = text(in);
        usual = headers(in);
        keys = new Texts(in);
        records = keys.lengths.length;
        headers = new Texts(in);
        values = new Texts(in);
        offsets = new long[records];
        in.asLongBuffer().get(offsets);
    }

    static ColumnarBatch unpack(byte[] packed) {
        ByteBuffer head = ByteBuffer.wrap(packed).order(ByteOrder.LITTLE_ENDIAN);
        byte[] plain = new byte[Math.toIntExact(head.getLong())];
        DECOMPRESSOR.decompress(packed, SIZE_BYTES, packed.length - SIZE_BYTES, plain, 0);
        return new ColumnarBatch(ByteBuffer.wrap(plain).order(ByteOrder.LITTLE_ENDIAN));
    }

    public long offset() {
        return taken < records ? offsets[taken] : Long.MAX_VALUE;
    }

    public ProducerRecord take() {
        int record = taken++;
        return new ProducerRecord(topic, null, null, keys.bytes(record), values.bytes(record), headers(record));
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

    /** null: a header without a value. */
    static byte[] bytes(ByteBuffer in) {
        int length = in.getInt();
        if (length < 0) {
            return null;
        }
        byte[] bytes = new byte[length];
        in.get(bytes);
        return bytes;
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
            start += Math.max(lengths[number], 0);
        }
        in.position(start);
    }

    static int[] numbers(ByteBuffer in, int count) {
        int[] numbers = new int[count];
        in.asIntBuffer().get(numbers);
        in.position(in.position() + 4 * count);
        return numbers;
    }

    byte[] bytes(int number) {
        return lengths[number] < 0 ? null : Arrays.copyOfRange(all, starts[number], starts[number] + lengths[number]);
    }
}
