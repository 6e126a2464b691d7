package lockkeeper;

import java.nio.ByteBuffer;
import java.util.Arrays;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;

/**
 * A record of an input partition, from a row of Spark's Kafka source. Put together here and not in SQL: Spark would analyze,
 * optimize and generate code for the expressions with every batch, which took a quarter of what a small one takes of the
 * query's thread, and would make for each record what only those for Python need.
 */
final class InputRecord {
    /** Of a row for Python; `Records` in streaming/enforcer/source.py takes `beside` apart. */
    static final StructType SCHEMA =
        new StructType().add("value", DataTypes.BinaryType).add("beside", DataTypes.BinaryType);

    // The columns of the source: KafkaRecordToRowConverter.schema.
    private static final int KEY = 0;
    private static final int VALUE = 1;
    private static final int OFFSET = 4;
    private static final int TIMESTAMP = 5; // microseconds
    private static final int HEADERS = 7;

    private static final int HEAD_BYTES = 32;
    private static final int CARRIED_BYTES = 1024; // streaming/enforcer/evaluator.py

    final byte[] key; // null: it has none
    final byte[] value; // null: the same
    final long offset;
    final long recorded; // when the broker got it, ms
    private final byte[] headers; // as Python reads them; null: there are none

    /** The row may be used again for the next record, so what is needed of it is copied. */
    InputRecord(InternalRow row) {
        key = row.isNullAt(KEY) ? null : row.getBinary(KEY);
        value = row.isNullAt(VALUE) ? null : row.getBinary(VALUE);
        offset = row.getLong(OFFSET);
        recorded = Math.floorDiv(row.getLong(TIMESTAMP), 1000L);
        headers = row.isNullAt(HEADERS) ? null : encode(row.getArray(HEADERS));
    }

    static long offset(InternalRow row) {
        return row.getLong(OFFSET);
    }

    /** Of each header the length of its name, the name, the length of its value, -1 where that is null, and the value. */
    private static byte[] encode(ArrayData headers) {
        int count = headers.numElements();
        byte[][] texts = new byte[2 * count][];
        int length = 8 * count;
        for (int number = 0; number < count; number++) {
            InternalRow header = headers.getStruct(number, 2);
            texts[2 * number] = header.getUTF8String(0).getBytes();
            texts[2 * number + 1] = header.isNullAt(1) ? null : header.getBinary(1);
        }
        for (int number = 0; number < texts.length; number++) {
            length += texts[number] == null ? 0 : texts[number].length;
        }
        ByteBuffer encoded = ByteBuffer.allocate(length);
        for (int number = 0; number < texts.length; number++) {
            encoded.putInt(texts[number] == null ? -1 : texts[number].length);
            if (texts[number] != null) {
                encoded.put(texts[number]);
            }
        }
        return count == 0 ? null : encoded.array();
    }

    /** What a decision carries over of a header: the last value that is not too long. null: there is none. */
    byte[] carried(byte[] name) {
        byte[] carried = null;
        ByteBuffer in = headers == null ? null : ByteBuffer.wrap(headers);
        while (in != null && in.hasRemaining()) {
            int nameLength = in.getInt();
            int nameStart = in.position();
            int length = in.position(nameStart + nameLength).getInt();
            int end = in.position() + Math.max(length, 0);
            if (length >= 0 && length <= CARRIED_BYTES
                && Arrays.equals(headers, nameStart, nameStart + nameLength, name, 0, name.length)) {
                carried = Arrays.copyOfRange(headers, in.position(), end);
            }
            in.position(end);
        }
        return carried;
    }

    int keyLength() {
        return key == null ? 0 : key.length;
    }

    /** How long a row of it is, with the name of its topic. */
    int bytes(byte[] topic) {
        return (value == null ? 0 : value.length) + besideBytes(topic);
    }

    private int besideBytes(byte[] topic) {
        return HEAD_BYTES + keyLength() + (headers == null ? 0 : headers.length) + topic.length;
    }

    /** The row for Python. missing: what the table lacks for it, see `KnownAnswers`. */
    InternalRow row(byte[] topic, int partition, int missing) {
        ByteBuffer beside = ByteBuffer.allocate(besideBytes(topic));
        beside.putLong(offset).putLong(recorded).putInt(partition);
        beside.putInt(key == null ? -1 : key.length).putInt(headers == null ? -1 : headers.length).putInt(missing);
        if (key != null) {
            beside.put(key);
        }
        if (headers != null) {
            beside.put(headers);
        }
        return new GenericInternalRow(new Object[] {value, beside.put(topic).array()});
    }
}
