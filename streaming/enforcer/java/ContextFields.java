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
    private static final byte[][] WORDS = {"true".getBytes(), "false".getBytes(), "null".getBytes()};

    private final byte[][] systems; // as JSON
    private final byte[][][] fields; // of each, with their quotes
    private final int[] starts = new int[MEMBERS]; // of names
    private final int[] ends = new int[MEMBERS];

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
        int name = request.start[RequestScan.SYSTEM];
        int system = length == 0 ? -1 : index(systems, request.text, name, name + request.length[RequestScan.SYSTEM]);
        if (system < 0 || !members(request, start, start + length, fields[system], to)) {
            to.cut(size);
            to.add(request.text, start, length);
        }
    }

    /** Which of the texts stands there; -1: none. */
    private static int index(byte[][] texts, byte[] in, int start, int end) {
        int index = texts.length - 1;
        while (index >= 0 && !Arrays.equals(in, start, end, texts[index], 0, texts[index].length)) {
            index--;
        }
        return index;
    }

    private boolean members(RequestScan request, int start, int end, byte[][] shown, Content to) {
        request.at = start + 1;
        int separator = ',';
        for (int count = 0; separator == ','; count++) {
            if (count == MEMBERS || !name(request, count) || request.next() != ':') {
                return false;
            }
            request.blanks();
            int value = request.at;
            if (!value(request)) {
                return false;
            }
            if (index(shown, request.text, starts[count], ends[count]) >= 0) {
                to.add(request.text, starts[count], ends[count] - starts[count]).add((byte) ':');
                to.add(request.text, value, request.at - value).add((byte) ',');
            }
            separator = request.next();
        }
        return separator == '}' && request.at == end;
    }

    /** One that is not among those before. */
    private boolean name(RequestScan request, int count) {
        request.blanks();
        starts[count] = request.at;
        boolean isNew = request.plain(' ');
        ends[count] = request.at;
        for (int other = 0; isNew && other < count; other++) {
            isNew = !Arrays.equals(request.text, starts[count], request.at, request.text, starts[other], ends[other]);
        }
        return isNew;
    }

    private static boolean value(RequestScan request) {
        byte first = request.text[request.at];
        if (first == '"') {
            return request.plain(' ');
        }
        for (int word = 0; word < WORDS.length; word++) {
            int end = request.at + WORDS[word].length;
            if (end < request.text.length && Arrays.equals(request.text, request.at, end, WORDS[word], 0, WORDS[word].length)) {
                request.at = end;
                return true;
            }
        }
        request.at += first == '-' ? 1 : 0;
        return request.whole();
    }
}
