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
    private final Content value = new Content();
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
        value.clear().add(partition.head).add(number).add(REQUEST_ID);
        value.add(request.text, request.start[RequestScan.ID], request.length[RequestScan.ID]);
        value.add(SYSTEM).add(answer.system).add(TIME).add(time).add(BEHIND_TIME);
        for (int piece = 0; piece < answer.pieces.length; piece++) {
            if (piece > 0) {
                value.add(request.text, request.start[RequestScan.RESOURCE] + 1, request.length[RequestScan.RESOURCE] - 2);
            }
            value.add(answer.pieces[piece]);
        }
        value.add(partition.tail).add(number).add(END);
        RecordHeaders headers = new RecordHeaders();
        headers.add(JSON);
        for (int name = 0; name < CARRIED.length; name++) {
            byte[] carried = input.carried(CARRIED_NAMES[name]);
            if (carried != null) {
                headers.add(new RecordHeader(CARRIED[name], carried));
            }
        }
        return new ProducerRecord(partition.decisions, null, null, input.key, value.copy(), headers);
    }
}
