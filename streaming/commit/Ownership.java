package lockkeeper;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsOptions;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsSpec;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TimeoutException;

/**
 * Which transactional id owns a partition: the one that stands beside its committed offset, else that of its own name. An
 * owner alone commits, and alone hands over. Who takes a partition takes the owner's id first, which fences that and
 * ends what it had open; reads the offset; and commits the same one under the owner's id, with its own as the next owner.
 * Rivals do so in turn, for each fences the one before. Then it reads again: one that came later may have the partition.
 *
 * Without this, four rivals that died within transactions and takeovers decided 346 of 2,800 records twice, and 45 out of
 * order.
 */
final class Ownership {
    private static final int SECONDS = 10;
    private static final int TRIES = 20; // of tasks of one job that take partitions over from the same owner side by side
    private static final int FORMAT = 2; // of metadata with an owner, see streaming/commit/offsets.py
    private static final ObjectMapper JSON = new ObjectMapper();

    private final WriterSettings settings;
    private final String id;

    Ownership(WriterSettings settings, String id) {
        this.settings = settings;
        this.id = id;
    }

    /** The committed offsets of these partitions, which the id owns by then; NONE where there is none. */
    Map take(Collection partitions) throws Exception {
        for (int left = TRIES; left > 0; left--) {
            Map others = others(read(partitions, false));
            if (others.isEmpty()) {
                Map read = read(partitions, true);
                others = others(read); // by a commit whose end was under way, or not yet seen by the group's coordinator
                if (others.isEmpty() && read.keySet().containsAll(partitions)) {
                    return offsets(read);
                }
            }
            for (Iterator each = others.entrySet().iterator(); each.hasNext();) {
                Map.Entry entry = (Map.Entry) each.next();
                handOver((String) entry.getKey(), (List) entry.getValue());
            }
        }
        throw new TimeoutException("others take over, or commit offsets of, the same partitions as " + id);
    }

    private void handOver(String owner, List partitions) throws Exception {
        Producer former = null;
        try {
            former = PartitionProducer.open(settings, owner);
            Map handedOver = new HashMap();
            Map read = read(partitions, true);
            for (Iterator each = read.entrySet().iterator(); each.hasNext();) {
                Map.Entry entry = (Map.Entry) each.next();
                OffsetAndMetadata offset = (OffsetAndMetadata) entry.getValue();
                if (owner.equals(ownerOf((TopicPartition) entry.getKey(), offset))) {
                    handedOver.put(entry.getKey(), new OffsetAndMetadata(offset.offset(), owned(offset.metadata())));
                }
            }
            if (!handedOver.isEmpty()) {
                former.beginTransaction();
                former.sendOffsetsToTransaction(handedOver, new ConsumerGroupMetadata(settings.job));
                former.commitTransaction();
            }
        } catch (KafkaException another) {
            if (Failures.statusOf(another) != PartitionResult.FENCED) {
                throw another;
            }
            // Another one takes over from the same owner: who has the partitions then is read again.
        } finally {
            if (former != null) {
                former.close(Duration.ZERO);
            }
        }
    }

    /**
     * isStable: without the offsets that transactions whose end is under way may still move (KIP-447). Kafka's client leaves
     * such a partition out, with a line in its log.
     */
    private Map read(Collection partitions, boolean isStable) throws Exception {
        ListConsumerGroupOffsetsSpec spec = new ListConsumerGroupOffsetsSpec().topicPartitions(partitions);
        return (Map) Executors.admin(settings)
            .listConsumerGroupOffsets(
                Collections.singletonMap(settings.job, spec),
                new ListConsumerGroupOffsetsOptions().requireStable(isStable))
            .partitionsToOffsetAndMetadata(settings.job).get(SECONDS, TimeUnit.SECONDS);
    }

    /** The partitions that another id owns, by that. */
    private Map others(Map read) {
        Map byOwner = new HashMap();
        for (Iterator each = read.entrySet().iterator(); each.hasNext();) {
            Map.Entry entry = (Map.Entry) each.next();
            String owner = ownerOf((TopicPartition) entry.getKey(), (OffsetAndMetadata) entry.getValue());
            if (!byOwner.containsKey(owner)) {
                byOwner.put(owner, new ArrayList());
            }
            ((List) byOwner.get(owner)).add(entry.getKey());
        }
        byOwner.remove(id);
        return byOwner;
    }

    /** The first offset of a partition is committed by the driver, which names the owner. */
    private String ownerOf(TopicPartition partition, OffsetAndMetadata offset) {
        if (offset == null) {
            return id;
        }
        JsonNode owner = parse(offset.metadata()).path("owner");
        return owner.isTextual() ? owner.textValue() : settings.job + "/" + partition.topic() + "/" + partition.partition();
    }

    private String owned(String metadata) {
        ObjectNode named = parse(metadata);
        if (!named.has("batch")) { // of another program; what CommitMetadata demands
            named.put("checkpoint", "").put("batch", -1).put("topic_id", "");
        }
        return named.put("format", FORMAT).put("owner", id).toString() + "\0";
    }

    /** Metadata that ends with a NUL; without members where it is none of lockkeeper's. */
    private static ObjectNode parse(String metadata) {
        try {
            JsonNode parsed = JSON.readTree(metadata.replace("\0", ""));
            return parsed instanceof ObjectNode ? (ObjectNode) parsed : JSON.createObjectNode();
        } catch (java.io.IOException other) {
            return JSON.createObjectNode();
        }
    }

    private static Map offsets(Map read) {
        Map offsets = new HashMap();
        for (Iterator each = read.entrySet().iterator(); each.hasNext();) {
            Map.Entry entry = (Map.Entry) each.next();
            OffsetAndMetadata offset = (OffsetAndMetadata) entry.getValue();
            offsets.put(entry.getKey(), Long.valueOf(offset == null ? PartitionProducer.NONE : offset.offset()));
        }
        return offsets;
    }
}
