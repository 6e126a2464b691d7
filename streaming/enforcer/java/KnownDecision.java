package lockkeeper;

import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.header.internals.RecordHeaders;

/** A decision by an answer of the table. */
final class KnownDecision {
    final long offset; // of the request
    final long recorded; // when the broker got it, ms
    final String label;
    final ProducerRecord record;

    KnownDecision(long offset, long recorded, String label, ProducerRecord record) {
        this.offset = offset;
        this.recorded = recorded;
        this.label = label;
        this.record = record;
    }

    String trace() {
        org.apache.kafka.common.header.Header trace = record.headers().lastHeader(Rendering.TRACE);
        return trace == null ? null : new String(trace.value(), StandardCharsets.US_ASCII);
    }
}

/** Writes the decisions of one partition: as `DecisionEnvelope.write` in streaming/records/decision.py, byte for byte. */
final class Rendering {
    static final String TRACE = "traceparent";

    private static final String[] CARRIED = {TRACE, "tracestate"}; // streaming/enforcer/evaluator.py
    private static final byte[][] CARRIED_NAMES = {CARRIED[0].getBytes(), CARRIED[1].getBytes()};
    private static final byte[] REQUEST_ID = "\",\"request_id\":".getBytes();
    private static final byte[] SYSTEM = ",\"system\":".getBytes();
    private static final byte[] TIME = ",\"time\":\"".getBytes();
    private static final byte[] BEHIND_TIME = "\",".getBytes();
    private static final byte[] END = "}}}".getBytes();
    private static final RecordHeader JSON = new RecordHeader("content-type", "application/json".getBytes());
    private static final DateTimeFormatter RFC_3339 =
        DateTimeFormatter.ofPattern("uuuu-MM-dd'T'HH:mm:ss.SSS'Z'").withZone(ZoneOffset.UTC);

    private final KnownTask.KnownPartition partition;
    private byte[] value = new byte[4096];
    private int end;
    private long timeOf = -1;
    private byte[] time;

    Rendering(KnownTask.KnownPartition partition) {
        this.partition = partition;
    }

    /** at: the moment of evaluation, ms. */
    ProducerRecord record(InputRecord input, RequestScan request, KnownAnswer answer, long at) {
        byte[] number = Long.toString(input.offset).getBytes(StandardCharsets.ISO_8859_1);
        if (at != timeOf) {
            time = RFC_3339.format(Instant.ofEpochMilli(at)).getBytes(StandardCharsets.ISO_8859_1);
            timeOf = at;
        }
        end = 0;
        put(partition.head);
        put(number);
        put(REQUEST_ID);
        put(request.text, request.start[RequestScan.ID], request.length[RequestScan.ID]);
        put(SYSTEM);
        put(answer.system);
        put(TIME);
        put(time);
        put(BEHIND_TIME);
        for (int piece = 0; piece < answer.pieces.length; piece++) {
            if (piece > 0) {
                put(request.text, request.start[RequestScan.RESOURCE] + 1, request.length[RequestScan.RESOURCE] - 2);
            }
            put(answer.pieces[piece]);
        }
        put(partition.tail);
        put(number);
        put(END);
        RecordHeaders headers = new RecordHeaders();
        headers.add(JSON);
        for (int name = 0; name < CARRIED.length; name++) {
            byte[] carried = input.carried(CARRIED_NAMES[name]);
            if (carried != null) {
                headers.add(new RecordHeader(CARRIED[name], carried));
            }
        }
        return new ProducerRecord(
            partition.decisions, null, null, input.key, java.util.Arrays.copyOf(value, end), headers);
    }

    private void put(byte[] text) {
        put(text, 0, text.length);
    }

    private void put(byte[] text, int start, int length) {
        if (end + length > value.length) {
            value = java.util.Arrays.copyOf(value, 2 * (end + length));
        }
        System.arraycopy(text, start, value, end, length);
        end += length;
    }
}
