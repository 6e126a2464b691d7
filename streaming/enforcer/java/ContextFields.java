package lockkeeper;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.Map;

/**
 * The members of a request's context that are part of what is asked, as `context_key` in streaming/enforcer/answers.py has them:
 * a context with others than texts of plain ASCII, words and whole numbers counts as a whole, and so does one of a system
 * that is shown all.
 */
final class ContextFields {
    private static final int MEMBERS = 32; // streaming/enforcer/answers.py
    private static final int DIGITS = 15; // the same
    private static final byte[][] WORDS = {"true".getBytes(), "false".getBytes(), "null".getBytes()};

    private final byte[][] systems; // as JSON
    private final byte[][][] fields; // of each, with their quotes
    private final int[] starts = new int[MEMBERS]; // of names
    private final int[] ends = new int[MEMBERS];
    private byte[] text;
    private int at;

    /** bySystem: lists of names. */
    ContextFields(Map bySystem) {
        systems = new byte[bySystem.size()][];
        fields = new byte[systems.length][][];
        int number = 0;
        for (Iterator each = bySystem.entrySet().iterator(); each.hasNext(); number++) {
            Map.Entry entry = (Map.Entry) each.next();
            systems[number] = quoted((String) entry.getKey());
            List names = (List) entry.getValue();
            fields[number] = new byte[names.size()][];
            for (int name = 0; name < names.size(); name++) {
                fields[number][name] = quoted((String) names.get(name));
            }
        }
    }

    private static byte[] quoted(String name) {
        return ('"' + name + '"').getBytes(StandardCharsets.UTF_8);
    }

    /** Adds what is part of what a request asks. */
    void add(RequestScan request, Content to) {
        int start = request.start[RequestScan.CONTEXT];
        int length = request.length[RequestScan.CONTEXT];
        int size = to.size();
        byte[][] shown = length == 0 ? null : of(request);
        if (shown != null && !members(request.text, start, start + length, shown, to)) {
            to.cut(size);
            shown = null;
        }
        if (shown == null) {
            to.add(request.text, start, length);
        }
    }

    /** Those that the system of a request is shown; null: all. */
    private byte[][] of(RequestScan request) {
        int start = request.start[RequestScan.SYSTEM];
        int end = start + request.length[RequestScan.SYSTEM];
        for (int number = 0; number < systems.length; number++) {
            if (Arrays.equals(request.text, start, end, systems[number], 0, systems[number].length)) {
                return fields[number];
            }
        }
        return null;
    }

    private boolean members(byte[] text, int start, int end, byte[][] shown, Content to) {
        this.text = text;
        at = start + 1;
        byte separator = ',';
        for (int count = 0; separator == ','; count++) {
            if (count == MEMBERS || !name(count)) {
                return false;
            }
            blanks();
            if (text[at++] != ':') {
                return false;
            }
            blanks();
            int value = at;
            if (!value()) {
                return false;
            }
            if (isShown(count, shown)) {
                to.add(text, starts[count], ends[count] - starts[count]).add((byte) ':');
                to.add(text, value, at - value).add((byte) ',');
            }
            blanks();
            separator = text[at++];
        }
        return separator == '}' && at == end;
    }

    /** One that is not among those before. */
    private boolean name(int count) {
        blanks();
        starts[count] = at;
        boolean isNew = plain();
        ends[count] = at;
        for (int other = 0; isNew && other < count; other++) {
            isNew = !Arrays.equals(text, starts[count], at, text, starts[other], ends[other]);
        }
        return isNew;
    }

    private boolean isShown(int count, byte[][] shown) {
        for (int number = 0; number < shown.length; number++) {
            if (Arrays.equals(text, starts[count], ends[count], shown[number], 0, shown[number].length)) {
                return true;
            }
        }
        return false;
    }

    private void blanks() {
        while (RequestScan.isBlank(text[at])) {
            at++;
        }
    }

    private boolean value() {
        if (text[at] == '"') {
            return plain();
        }
        for (int word = 0; word < WORDS.length; word++) {
            int end = at + WORDS[word].length;
            if (end < text.length && Arrays.equals(text, at, end, WORDS[word], 0, WORDS[word].length)) {
                at = end;
                return true;
            }
        }
        at += text[at] == '-' ? 1 : 0;
        int first = at;
        while (text[at] >= '0' && text[at] <= '9') {
            at++;
        }
        return at > first && at - first <= DIGITS && (text[first] != '0' || at == first + 1);
    }

    /** A text of printable ASCII without escapes, with its quotes. It ends, for a scan has found the end of the request. */
    private boolean plain() {
        if (text[at++] != '"') {
            return false;
        }
        while (text[at] >= ' ' && text[at] <= '~' && text[at] != '"' && text[at] != '\\') {
            at++;
        }
        return text[at++] == '"';
    }
}
