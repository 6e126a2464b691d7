package lockkeeper;

import java.security.SecureRandom;
import java.util.Arrays;
import org.apache.spark.unsafe.Platform;

/**
 * Bytes as a key. What is asked comes from untrusted clients: its hash is seeded, so that nobody can choose keys that
 * collide. Tables keep copies; one that is filled again and again looks up.
 */
final class Content {
    /** Part of no JSON, so that different parts make different contents: as in streaming/enforcer/answers.py. */
    static final byte SEPARATOR = 0;
    static final byte PROPERTY_IS_ID = 1;

    private static final long SEED = new SecureRandom().nextLong();

    private byte[] bytes;
    private int length;
    private int hash;

    /** One that can be filled. */
    Content() {
        bytes = new byte[64];
    }

    Content(byte[] bytes) {
        this.bytes = bytes;
        this.length = bytes.length;
        this.hash = hash(bytes, length);
    }

    Content(Content other) {
        this(other.copy());
    }

    Content clear() {
        length = 0;
        return this;
    }

    Content add(byte[] from, int start, int size) {
        if (length + size > bytes.length) {
            bytes = Arrays.copyOf(bytes, 2 * (length + size));
        }
        System.arraycopy(from, start, bytes, length, size);
        length += size;
        return this;
    }

    Content add(byte[] all) {
        return add(all, 0, all.length);
    }

    Content add(byte single) {
        if (length == bytes.length) {
            bytes = Arrays.copyOf(bytes, 2 * length);
        }
        bytes[length++] = single;
        return this;
    }

    Content done() {
        hash = hash(bytes, length);
        return this;
    }

    /** All that an answer reads of a request but the resource's id and the time; null: for Python. */
    Content of(RequestScan request, ContextFields context) {
        int repeated = request.repeated();
        if (repeated < 0) {
            return null;
        }
        clear();
        part(request, RequestScan.SYSTEM);
        part(request, RequestScan.SUBJECT);
        part(request, RequestScan.ACTION);
        part(request, RequestScan.TYPE);
        int first = request.start[RequestScan.PROPERTIES];
        int end = first + request.length[RequestScan.PROPERTIES];
        add(request.text, first, repeated - first);
        if (repeated < end) {
            add(PROPERTY_IS_ID);
            int behind = repeated + request.length[RequestScan.RESOURCE];
            add(request.text, behind, end - behind);
        }
        add(SEPARATOR);
        context.add(request, this);
        return done();
    }

    private void part(RequestScan request, int part) {
        add(request.text, request.start[part], request.length[part]).add(SEPARATOR);
    }

    /** The same with the resource's id. */
    Content with(RequestScan request) {
        add(SEPARATOR);
        return add(request.text, request.start[RequestScan.RESOURCE], request.length[RequestScan.RESOURCE]).done();
    }

    int size() {
        return length;
    }

    byte[] copy() {
        return Arrays.copyOf(bytes, length);
    }

    /** Back to the first so many bytes. */
    void cut(int size) {
        length = size;
    }

    private static int hash(byte[] text, int length) {
        long hash = SEED ^ length * 0x9E3779B97F4A7C15L;
        int at = 0;
        for (; at + 8 <= length; at += 8) {
            hash = mix(hash ^ Platform.getLong(text, (long) Platform.BYTE_ARRAY_OFFSET + at), 0xA0761D6478BD642FL);
        }
        long rest = 0;
        for (; at < length; at++) {
            rest = rest << 8 | text[at] & 0xFF;
        }
        hash = mix(hash ^ rest, 0xE7037ED1A0B428DBL);
        return (int) (hash ^ hash >>> 32);
    }

    private static long mix(long a, long b) {
        return Math.multiplyHigh(a, b) ^ a * b;
    }

    public int hashCode() {
        return hash;
    }

    public boolean equals(Object other) {
        return other instanceof Content && hash == ((Content) other).hash
            && Arrays.equals(bytes, 0, length, ((Content) other).bytes, 0, ((Content) other).length);
    }
}
