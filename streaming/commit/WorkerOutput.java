package lockkeeper;

import java.io.ByteArrayOutputStream;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;

/**
 * Spark's JVM copies what its Python workers print to System.err. Workers of stateful queries print their progress there,
 * with addresses of objects, and some print a trace when Spark closes their sockets at its end. This passes the other
 * lines on. Logs do not come by here: log4j kept the stream that was there when it started.
 */
public final class WorkerOutput extends OutputStream {
    private static final String PROGRESS = "Streaming TransformWithStateInPandas Python worker";

    private final PrintStream behind = System.err;
    private final ByteArrayOutputStream line = new ByteArrayOutputStream();
    private boolean dropped = false;
    private volatile boolean muted = false;

    public WorkerOutput() {
        System.setErr(new PrintStream(this, true));
    }

    /** Pass nothing on from now on: Spark stops. */
    public void mute() {
        muted = true;
    }

    @Override
    public synchronized void write(int octet) {
        line.write(octet);
        if (octet == '\n') {
            endLine();
        }
    }

    @Override
    public synchronized void write(byte[] octets, int offset, int length) {
        for (int i = offset; i < offset + length; i++) {
            write(octets[i]);
        }
    }

    private void endLine() {
        byte[] whole = line.toByteArray();
        line.reset();
        String text = new String(whole, StandardCharsets.UTF_8);
        // Each line of progress is followed by an empty one.
        dropped = text.contains(PROGRESS) || (dropped && text.trim().isEmpty());
        if (!dropped && !muted) {
            behind.write(whole, 0, whole.length);
            behind.flush();
        }
    }
}
