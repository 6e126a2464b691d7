package lockkeeper;

import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;

/** What became of one input partition, as MessagePack: `PartitionResult` in streaming/commit/partitions.py reads it. */
public final class PartitionResult {
    static final int OK = 0;
    static final int MOVED = 1; // another offset is committed than the one that was planned with: `offset`
    static final int FENCED = 2; // another producer has the transactional id
    static final int UNAVAILABLE = 3; // Kafka did not answer; what is committed is not known
    static final int REFUSED = 4; // Kafka refused
    static final int ABSENT = 5; // this executor does not have the transaction (any more)

    private PartitionResult() { }

    static byte[] encode(
            PartitionRange range, int status, long offset, long attempt, String error, long[] millis, List sides,
            String counted) {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        DataOutputStream out = new DataOutputStream(bytes);
        try {
            out.writeByte(0x9a);
            text(out, range.topic);
            number(out, range.partition);
            number(out, status);
            number(out, offset);
            number(out, attempt);
            text(out, Executors.here());
            text(out, error);
            array(out, millis.length);
            for (int at = 0; at < millis.length; at++) {
                number(out, millis[at]);
            }
            array(out, sides.size());
            for (int at = 0; at < sides.size(); at++) {
                out.write((byte[]) sides.get(at));
            }
            text(out, counted);
        } catch (IOException impossible) {
            throw new IllegalStateException(impossible);
        }
        return bytes.toByteArray();
    }

    private static void number(DataOutputStream out, long number) throws IOException {
        out.writeByte(0xd3);
        out.writeLong(number);
    }

    private static void text(DataOutputStream out, String text) throws IOException {
        byte[] utf8 = text.getBytes(StandardCharsets.UTF_8);
        out.writeByte(0xdb);
        out.writeInt(utf8.length);
        out.write(utf8);
    }

    private static void array(DataOutputStream out, int size) throws IOException {
        out.writeByte(0xdd);
        out.writeInt(size);
    }

    /** Several of them, as one array of MessagePack. */
    static byte[] together(byte[][] results) {
        int size = 5;
        for (int number = 0; number < results.length; number++) {
            size = Math.addExact(size, results[number].length);
        }
        java.nio.ByteBuffer all = java.nio.ByteBuffer.allocate(size).put((byte) 0xdd).putInt(results.length);
        for (int number = 0; number < results.length; number++) {
            all.put(results[number]);
        }
        return all.array();
    }

    /** Of what Py4J cannot return at once: the bytes from `start` on, and no more than `most`. */
    public static byte[] piece(byte[][] whole, int start, int most) {
        return Arrays.copyOfRange(whole[0], start, (int) Math.min((long) start + most, whole[0].length));
    }
}
