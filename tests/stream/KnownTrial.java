package lockkeeper;

import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.unsafe.types.UTF8String;
import scala.jdk.javaapi.CollectionConverters;

/** Gives records to the table as a task does, without Kafka and Python workers: for tests/stream/known.py. */
public final class KnownTrial {
    private KnownTrial() { }

    /** Of each row what is missing (0, 1, 2), or -1 and the value, key and headers of its decision; then what is counted. */
    public static byte[] decide(String instance, byte[] task, String line, byte[] packed, byte[] newer) throws Exception {
        List rows = rows(packed);
        KnownRecords records = new KnownRecords(
            KnownTask.read(instance, task), new PartitionRange(line), CollectionConverters.asScala(rows.iterator()));
        begin(instance, newer, line);
        byte[] missing = new byte[rows.size()];
        java.util.Arrays.fill(missing, (byte) 9);
        while (records.hasNext()) {
            byte[] beside = ((InternalRow) records.next()).getBinary(1);
            missing[(int) ByteBuffer.wrap(beside).getLong(0)] = beside[31];
        }
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        DataOutputStream out = new DataOutputStream(bytes);
        for (int row = 0; row < missing.length; row++) {
            boolean isDecided = records.offset() == row;
            if (!isDecided) {
                out.writeByte(missing[row]);
            } else {
                out.writeByte(-1);
                ProducerRecord made = records.take();
                text(out, (byte[]) made.value());
                text(out, (byte[]) made.key());
                org.apache.kafka.common.header.Header[] headers = made.headers().toArray();
                out.writeInt(headers.length);
                for (int number = 0; number < headers.length; number++) {
                    text(out, headers[number].key().getBytes());
                    text(out, headers[number].value());
                }
            }
        }
        text(out, records.sideOutput().getBytes());
        return bytes.toByteArray();
    }

    public static long failures() {
        return KnownRecords.FAILURES.get();
    }

    public static void learn(String instance, byte[] task, String line, byte[] lessons, byte[] newer) throws Exception {
        KnownTask known = KnownTask.read(instance, task);
        KnownAnswers table = known.table(known.partition(new PartitionRange(line)));
        begin(instance, newer, line);
        if (table != null) {
            table.learn(ByteBuffer.wrap(lessons), known.versions.number);
        }
    }

    /** A task of newer policies, while another runs; none where it is empty. */
    private static void begin(String instance, byte[] newer, String line) throws Exception {
        if (newer.length > 0) {
            KnownTask task = KnownTask.read(instance, newer);
            task.table(task.partition(new PartitionRange(line)));
        }
    }

    private static void text(DataOutputStream out, byte[] text) throws Exception {
        out.writeInt(text == null ? -1 : text.length);
        if (text != null) {
            out.write(text);
        }
    }

    private static List rows(byte[] packed) {
        List rows = new ArrayList();
        ByteBuffer in = ByteBuffer.wrap(packed).order(ByteOrder.BIG_ENDIAN);
        while (in.hasRemaining()) {
            rows.add(row(bytes(in), ByteBuffer.wrap(bytes(in))));
        }
        return rows;
    }

    /** As Spark's Kafka source has the record whose row for Python this is. */
    private static InternalRow row(byte[] value, ByteBuffer beside) {
        Long offset = Long.valueOf(beside.getLong());
        Long micros = Long.valueOf(1000 * beside.getLong());
        Integer partition = Integer.valueOf(beside.getInt());
        int keyLength = beside.getInt();
        int headersLength = beside.getInt();
        beside.getInt();
        byte[] key = bytes(beside, keyLength);
        byte[] headers = bytes(beside, headersLength);
        UTF8String topic = UTF8String.fromBytes(bytes(beside, beside.remaining()));
        return new GenericInternalRow(new Object[] {
            key, value, topic, partition, offset, micros, Integer.valueOf(0), headers == null ? null : headers(headers)});
    }

    private static GenericArrayData headers(byte[] encoded) {
        List headers = new ArrayList();
        ByteBuffer in = ByteBuffer.wrap(encoded);
        while (in.hasRemaining()) {
            headers.add(new GenericInternalRow(new Object[] {UTF8String.fromBytes(bytes(in)), bytes(in)}));
        }
        return new GenericArrayData(headers.toArray());
    }

    private static byte[] bytes(ByteBuffer in) {
        return bytes(in, in.getInt());
    }

    private static byte[] bytes(ByteBuffer in, int length) {
        if (length < 0) {
            return null;
        }
        byte[] bytes = new byte[length];
        in.get(bytes);
        return bytes;
    }
}
