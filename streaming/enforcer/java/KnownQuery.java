package lockkeeper;

import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

/**
 * The answers to one content, as `CachedQuery` in policy/evaluation/answers.py has them: the only one, or one for each
 * state of the trie to which the resource's id leads. They hold from moment `since` (ms) up to, without it, `until`.
 */
final class KnownQuery {
    private static final int BYTES = 400;
    private static final int LOOKUP_BYTES = 24;

    final Content key;
    final String system;
    final TrieStates states; // null: there is one answer
    volatile int weight; // about how many bytes it has
    private final long since;
    private final long until;
    final KnownAnswer only;
    private final ConcurrentHashMap byState;
    private final Long[] lookups; // of facts and principals

    KnownQuery(Content key, String system, long since, long until, TrieStates states, KnownAnswer only, Long[] lookups) {
        this.key = key;
        this.system = system;
        this.since = since;
        this.until = until;
        this.states = states;
        this.only = only;
        this.lookups = lookups;
        byState = states == null ? null : new ConcurrentHashMap(4);
        weight = BYTES + key.size() + LOOKUP_BYTES * lookups.length + (only == null ? 0 : only.size);
    }

    boolean holds(long at) {
        return since <= at && at < until;
    }

    /** changed: lookups, and systems. */
    boolean restsOn(Set changed) {
        boolean rests = changed.contains(system);
        for (int number = 0; !rests && number < lookups.length; number++) {
            rests = changed.contains(lookups[number]);
        }
        return rests;
    }

    /** Whether it may be taught more, and holds between these moments. */
    boolean isOf(long since, long until) {
        return (states == null || !states.hasEnded) && this.since == since && this.until == until;
    }

    KnownAnswer at(Long state) {
        return (KnownAnswer) byState.get(state);
    }

    /** Called by one thread at a time. */
    boolean put(Long state, KnownAnswer answer) {
        boolean isNew = byState.putIfAbsent(state, answer) == null;
        weight += isNew ? answer.size : 0;
        return isNew;
    }
}

/** An answer as it was rendered: texts around the resource's id. `label`: as what it is counted. */
final class KnownAnswer {
    final String label;
    final byte[] system; // as JSON
    final byte[][] pieces;
    final int size;

    KnownAnswer(String label, byte[] system, byte[][] pieces) {
        this.label = label;
        this.system = system;
        this.pieces = pieces;
        int size = system.length;
        for (int number = 0; number < pieces.length; number++) {
            size += pieces[number].length;
        }
        this.size = size;
    }
}
