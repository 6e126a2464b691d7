package lockkeeper;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

/**
 * The answers that workers have given to the producers of one trust, for all tasks of a job in this JVM.
 *
 * They are those of one version of policies and facts: `follow` ends what a newer one may have changed. That is what has
 * looked up a fact or started from a principal that has changed, see `Basis` in policy/evaluation/answers.py and
 * `PolicySet.affected_principals`. Tasks of another version neither find nor teach anything.
 *
 * Where ids lead is known by the trie of one version of a system's policies. Answers that outlive it keep it for the ids
 * that it knows; nothing is added to it, for workers number the states of the newest trie. With another id such a query is
 * taught anew: patterns that are new may tell ids apart that were alike.
 *
 * Queries are of two generations: a new one is young, and an old one again when it is found; when the young ones have half
 * of the bytes, the old ones are dropped and the young ones become old. So what is asked once does not drive out what is
 * asked often.
 */
final class KnownAnswers {
    /** What of a request was not known, and is to be taught. */
    static final int NOTHING = 0;
    static final int QUERY = 1;
    static final int STATE = 2;

    private static final int ANSWER_BYTES = 100; // beside what its size says

    private volatile long mostBytes;
    private volatile long version = -1;
    private volatile ConcurrentHashMap young = new ConcurrentHashMap();
    private volatile ConcurrentHashMap old = new ConcurrentHashMap();
    private final ConcurrentHashMap states = new ConcurrentHashMap(); // by system and scope
    private Map epochs = new HashMap();
    private Map tries = new HashMap();
    private long changes;
    private long youngBytes;
    private long stateBytes;

    KnownAnswers(long mostBytes) {
        this.mostBytes = mostBytes;
    }

    void resize(long mostBytes) {
        this.mostBytes = mostBytes;
    }

    /** Becomes that of a newer version, and whether it is of this version now: an older one's tasks have no table. */
    synchronized boolean follow(KnownTask.Versions versions) {
        if (versions.number <= version) {
            return versions.number == version;
        }
        version = -1; // nobody finds anything in between
        if (versions.isContinued(changes) && versions.epochs.size() == epochs.size()) {
            endChanged(versions);
        } else {
            clear();
        }
        epochs = versions.epochs;
        tries = versions.tries;
        changes = versions.changes();
        version = versions.number;
        return true;
    }

    /** Ends what rests on lookups that have changed, all of systems whose policies have for everybody, and their tries. */
    private void endChanged(KnownTask.Versions versions) {
        Set lookups = changed(epochs, versions.epochs);
        for (long change = changes; change < versions.changes(); change++) {
            lookups.add(Long.valueOf(versions.lookups[(int) (change - versions.first)]));
        }
        Set systems = changed(tries, versions.tries);
        for (Iterator scopes = states.entrySet().iterator(); scopes.hasNext();) {
            Map.Entry scope = (Map.Entry) scopes.next();
            String name = (String) scope.getKey();
            if (systems.contains(name.substring(0, name.indexOf('\n')))) {
                ((TrieStates) scope.getValue()).hasEnded = true;
                scopes.remove();
            }
        }
        if (!lookups.isEmpty()) {
            remove(young, lookups);
            remove(old, lookups);
        }
    }

    /** The systems that have another number. */
    private static Set changed(Map before, Map after) {
        Map changed = new HashMap(after);
        changed.entrySet().removeAll(before.entrySet());
        return new HashSet(changed.keySet());
    }

    /** changed: lookups and systems. A task that has such a query in hands is one of the version before, for which it holds. */
    private static void remove(ConcurrentHashMap queries, Set changed) {
        for (Iterator each = queries.values().iterator(); each.hasNext();) {
            if (((KnownQuery) each.next()).restsOn(changed)) {
                each.remove();
            }
        }
    }

    private void clear() {
        young.clear();
        old.clear();
        states.clear();
        youngBytes = 0;
        stateBytes = 0;
    }

    /** What is known of a request at a moment (ms). Returns it in `lookup`. */
    void find(RequestScan request, long at, long version, Lookup lookup) {
        lookup.answer = null;
        lookup.missing = NOTHING;
        Content content = lookup.content.of(request, lookup.context);
        if (content == null || version != this.version) {
            return;
        }
        KnownQuery query = query(content);
        if (query == null) {
            query = query(content.with(request));
        }
        if (query == null || !query.holds(at)) {
            lookup.missing = QUERY;
            return;
        }
        if (query.states == null) {
            lookup.answer = query.only;
            return;
        }
        int id = request.start[RequestScan.RESOURCE] + 1;
        Long state = query.states.find(request.text, id, id + request.length[RequestScan.RESOURCE] - 2, lookup.name);
        lookup.answer = state == null ? null : query.at(state);
        lookup.missing = lookup.answer != null ? NOTHING : query.states.hasEnded ? QUERY : STATE;
    }

    private KnownQuery query(Content key) {
        KnownQuery query = (KnownQuery) young.get(key);
        return query == null ? recalled(key) : query;
    }

    private KnownQuery recalled(Content key) {
        KnownQuery query = (KnownQuery) old.get(key);
        if (query != null) {
            synchronized (this) {
                if (old.remove(key, query)) {
                    put(query);
                }
            }
        }
        return query;
    }

    private void put(KnownQuery query) {
        young.put(query.key, query);
        spend(query.weight);
    }

    private void spend(int bytes) {
        youngBytes += bytes;
        if (youngBytes > mostBytes / 2) {
            old = young;
            young = new ConcurrentHashMap();
            youngBytes = 0;
        }
    }

    /** Learns what a worker has answered under a version: see streaming/enforcer/lessons.py. */
    synchronized void learn(ByteBuffer in, long version) {
        if (version != this.version) {
            return;
        }
        if (stateBytes > mostBytes / 2) {
            clear();
        }
        in.order(ByteOrder.LITTLE_ENDIAN);
        KnownAnswer[] answers = answers(in);
        for (int left = in.getInt(); left > 0; left--) {
            learnQuery(in, answers);
        }
        for (int left = in.getInt(); left > 0; left--) {
            TrieStates states = states(ColumnarBatch.text(in));
            byte[] head = ColumnarBatch.bytes(in);
            stateBytes += states.learnHead(head, Long.valueOf(in.getLong()), in);
        }
        for (int left = in.getInt(); left > 0; left--) {
            learnState(in, answers);
        }
    }

    private static KnownAnswer[] answers(ByteBuffer in) {
        KnownAnswer[] answers = new KnownAnswer[in.getInt()];
        for (int number = 0; number < answers.length; number++) {
            String label = ColumnarBatch.text(in).intern(); // there are few, and each decision looks it up to be counted
            byte[] system = ColumnarBatch.bytes(in);
            byte[][] pieces = new byte[in.getInt()][];
            for (int piece = 0; piece < pieces.length; piece++) {
                pieces[piece] = ColumnarBatch.bytes(in);
            }
            answers[number] = new KnownAnswer(label, system, pieces);
        }
        return answers;
    }

    private void learnQuery(ByteBuffer in, KnownAnswer[] answers) {
        Content key = new Content(ColumnarBatch.bytes(in));
        String system = ColumnarBatch.text(in);
        long since = in.getLong();
        long until = in.getLong();
        int only = in.getInt();
        String scope = ColumnarBatch.text(in);
        Long[] lookups = new Long[in.getInt()];
        for (int number = 0; number < lookups.length; number++) {
            lookups[number] = Long.valueOf(in.getLong());
        }
        KnownQuery before = query(key);
        if (before != null && before.isOf(since, until)) {
            return; // several tasks teach the same
        }
        put(new KnownQuery(
            key, system, since, until, only < 0 ? states(scope) : null, only < 0 ? null : answers[only], lookups));
    }

    private void learnState(ByteBuffer in, KnownAnswer[] answers) {
        KnownQuery query = query(new Content(ColumnarBatch.bytes(in)));
        byte[] id = ColumnarBatch.bytes(in);
        Long state = Long.valueOf(in.getLong());
        KnownAnswer answer = answers[in.getInt()];
        if (query == null || query.states == null || query.states.hasEnded) {
            return;
        }
        stateBytes += query.states.learn(id, state);
        Long first = query.states.find(id, 0, id.length, new Content());
        if (first != null && query.put(first, answer)) {
            spend(ANSWER_BYTES + answer.size);
        }
    }

    private TrieStates states(String scope) {
        TrieStates ofScope = (TrieStates) states.get(scope);
        if (ofScope == null) {
            ofScope = new TrieStates(scope.endsWith("/"));
            states.put(scope, ofScope);
        }
        return ofScope;
    }
}

/** What was found of a request, with the buffers in which it is looked for: each task has one. */
final class Lookup {
    final ContextFields context;
    final Content content = new Content();
    final Content name = new Content();
    KnownAnswer answer;
    int missing;

    Lookup(ContextFields context) {
        this.context = context;
    }
}
