package lockkeeper;

import java.nio.ByteBuffer;
import java.util.concurrent.ConcurrentHashMap;

/**
 * To which state of a system's trie an id leads, as far as workers have said: see `States` in policy/evaluation/answers.py.
 * A state is a number; a worker may number a state that another has numbered, too, which costs hits alone.
 */
final class TrieStates {
    private static final int ENTRY_BYTES = 150;

    private final boolean hasLevels; // else ids have no part before the last one
    private final ConcurrentHashMap heads = new ConcurrentHashMap(); // by what stands before the last part: an Exits
    private final ConcurrentHashMap exits = new ConcurrentHashMap(); // by state
    private final ConcurrentHashMap ids = new ConcurrentHashMap(); // where it is not known how to go on from a head

    volatile boolean hasEnded; // the trie is not the newest any more

    TrieStates(boolean hasLevels) {
        this.hasLevels = hasLevels;
    }

    /** Where the last part of an id begins. */
    private int last(byte[] text, int start, int end) {
        int last = end;
        while (hasLevels && last > start && text[last - 1] != '/') {
            last--;
        }
        return hasLevels ? last : start;
    }

    /** The state; null: not known. buffer: to be filled. */
    Long find(byte[] text, int start, int end, Content buffer) {
        int last = last(text, start, end);
        Exits from = (Exits) heads.get(buffer.clear().add(text, start, last - start).done());
        Long state = from == null || last == end ? null : from.next(text, last, end, buffer);
        return state == null ? (Long) ids.get(buffer.clear().add(text, start, end - start).done()) : state;
    }

    /**
     * Learns what stands before the last part of some id, and to what state that leads. Returns about how many bytes.
     *
     * The first worker that teaches a head is heard: another one has other numbers for the same, and what was learned of
     * those would have to be learned again.
     */
    int learnHead(byte[] head, Long state, ByteBuffer in) {
        Content key = new Content(head);
        int began = in.position();
        Exits taught = new Exits(state, in);
        if (heads.containsKey(key)) {
            return 0;
        }
        Exits before = (Exits) exits.putIfAbsent(state, taught);
        heads.put(key, before == null ? taught : before);
        return ENTRY_BYTES + head.length + (before == null ? 4 * (in.position() - began) : 0);
    }

    /** Learns the state of an id; returns about how many bytes, 0 where it was known. */
    int learn(byte[] id, Long state) {
        int last = last(id, 0, id.length);
        Content buffer = new Content();
        Exits from = (Exits) heads.get(buffer.add(id, 0, last).done());
        if (from != null && last < id.length) {
            return from.learn(id, last, state, buffer) ? ENTRY_BYTES : 0;
        }
        return ids.putIfAbsent(new Content(id), state) == null ? ENTRY_BYTES + id.length : 0;
    }
}

/**
 * How names go on from a state: by the texts that a pattern has next, each by itself; all others by the longest prefix of
 * theirs that a pattern has next, for that one determines which others they have.
 */
final class Exits {
    private static final Long UNKNOWN = Long.valueOf(-1);
    private static final byte TEXT = 1; // in front of a key
    private static final byte PREFIX = 0;

    private final Long same; // of a final state, where all names lead to
    private final ConcurrentHashMap states = new ConcurrentHashMap(); // by text or prefix
    private final int[] lengths; // of the prefixes, falling, to that of the empty one, which every text has

    /** in: as `_exits` in streaming/enforcer/lessons.py has them. */
    Exits(Long state, ByteBuffer in) {
        same = in.get() == 1 ? state : null;
        lengths = new int[in.getInt()];
        for (int number = 0; number < lengths.length; number++) {
            lengths[number] = in.getInt();
        }
        put(in, TEXT);
        put(in, PREFIX);
    }

    private void put(ByteBuffer in, byte kind) {
        for (int left = in.getInt(); left > 0; left--) {
            states.put(new Content(new Content().add(kind).add(ColumnarBatch.bytes(in))), UNKNOWN);
        }
    }

    /** The key by which a text goes on, in the buffer. */
    private Content keyOf(byte[] text, int start, int end, Content buffer) {
        buffer.clear().add(TEXT).add(text, start, end - start).done();
        for (int number = 0; number < lengths.length && !states.containsKey(buffer); number++) {
            if (lengths[number] <= end - start) {
                buffer.clear().add(PREFIX).add(text, start, lengths[number]).done();
            }
        }
        return buffer;
    }

    Long next(byte[] text, int start, int end, Content buffer) {
        Long state = same == null ? (Long) states.get(keyOf(text, start, end, buffer)) : same;
        return state == UNKNOWN ? null : state;
    }

    boolean learn(byte[] id, int start, Long state, Content buffer) {
        return same == null && states.replace(keyOf(id, start, id.length, buffer), UNKNOWN, state);
    }
}
