package lockkeeper;

import java.time.DateTimeException;
import java.time.LocalDateTime;
import java.time.ZoneOffset;
import java.util.Arrays;

/**
 * Where the parts of a request stand in its JSON, if it is one of the usual form.
 *
 * Parts that an answer reads are not parsed, only delimited: they are compared, byte for byte, with what Python's decoder
 * has accepted. That makes a request well-formed as long as everything between them is checked here: exactly the
 * members of a request, each at most once, texts of printable ASCII without escapes, whole numbers. What else there may
 * be, also such as is allowed, is for Python.
 */
final class RequestScan {
    static final int ID = 0;
    static final int SYSTEM = 1;
    static final int SUBJECT = 2;
    static final int ACTION = 3;
    static final int CONTEXT = 4;
    static final int RESOURCE = 8; // its id
    static final int TYPE = 9;
    static final int PROPERTIES = 10;
    static final long NO_MOMENT = -1;

    private static final int WHOLE_RESOURCE = 5;
    private static final int TIME = 6;
    private static final int DEADLINE = 7;
    private static final int UNKNOWN = -1;
    private static final byte[][] NAMES = {
        "id".getBytes(), "system".getBytes(), "subject".getBytes(), "action".getBytes(), "context".getBytes(),
        "resource".getBytes(), "time".getBytes(), "deadline".getBytes(), "id".getBytes(), "type".getBytes(),
        "properties".getBytes()};
    private static final int EMPTY = 2; // quotes
    private static final int DIGITS = 15;
    private static final String DATE_TIME = "yyyy-mm-ddThh:mm:ss";
    private static final int OF_MILLISECONDS = 3; // digits
    private static final int OF_FRACTION = 9; // the same: more are for Python
    private static final long LAST_MOMENT = 253402300799999L; // policy.core.times
    private static final long LIKE_SECONDS_FIRST = 1000000000L;
    private static final long LIKE_SECONDS_LAST = 100000000000L;

    byte[] text;
    /** By part; a length of 0: it is not there. Texts are with their quotes. */
    final int[] start = new int[NAMES.length];
    final int[] length = new int[NAMES.length];
    long time;
    long deadline;
    int at; // what is looked at next

    /** Whether a value is such a request. */
    boolean scan(byte[] value) {
        text = value;
        at = 0;
        Arrays.fill(start, 0);
        Arrays.fill(length, 0);
        time = NO_MOMENT;
        deadline = NO_MOMENT;
        if (!members(ID, RESOURCE)) {
            return false;
        }
        blanks();
        return at == text.length && length[ID] > 0 && length[SYSTEM] > 0 && length[SUBJECT] > 0 && length[ACTION] > 0
            && length[TYPE] > 0 && length[RESOURCE] > 0;
    }

    /** An object whose members are parts from one on up to, without it, another. */
    private boolean members(int from, int to) {
        if (next() != '{') {
            return false;
        }
        int separator = ',';
        while (separator == ',') {
            int part = name(from, to);
            if (part == UNKNOWN || length[part] > 0 || next() != ':') {
                return false;
            }
            blanks();
            int first = at;
            if (!value(part)) {
                return false;
            }
            start[part] = first;
            length[part] = at - first;
            separator = next();
        }
        return separator == '}';
    }

    private int name(int from, int to) {
        if (next() != '"') {
            return UNKNOWN;
        }
        int first = at;
        while (at < text.length && text[at] != '"') {
            at++;
        }
        int end = at++;
        for (int part = from; part < to; part++) {
            if (end < text.length && Arrays.equals(text, first, end, NAMES[part], 0, NAMES[part].length)) {
                return part;
            }
        }
        return UNKNOWN;
    }

    private boolean value(int part) {
        int start = at;
        switch (part) {
            case ID:
                return plain(' ') && at - start > EMPTY;
            case RESOURCE:
                return plain('!') && at - start > EMPTY; // Python looks closer at a name with a blank: it may be taken for another
            case WHOLE_RESOURCE:
                return members(RESOURCE, NAMES.length);
            case TIME:
                time = moment();
                return time != NO_MOMENT;
            case DEADLINE:
                deadline = moment();
                return deadline != NO_MOMENT;
            default:
                return delimited();
        }
    }

    void blanks() {
        while (at < text.length && isBlank(text[at])) {
            at++;
        }
    }

    private static boolean isBlank(byte c) {
        return c == ' ' || c == '\n' || c == '\r' || c == '\t';
    }

    int next() {
        blanks();
        if (at >= text.length) {
            return UNKNOWN;
        }
        return text[at++];
    }

    /** A text of printable ASCII from a character on, without escapes: encoded again it is the same. */
    boolean plain(int lowest) {
        if (at >= text.length || text[at++] != '"') {
            return false;
        }
        while (at < text.length && text[at] != '"') {
            byte c = text[at];
            if (c < lowest || c > '~' || c == '\\') {
                return false;
            }
            at++;
        }
        return at++ < text.length;
    }

    private long moment() {
        return at < text.length && text[at] == '"' ? dateTime() : milliseconds();
    }

    /** A text of RFC 3339 in UTC, to the millisecond before. Other zones, letters, years and leap seconds are for Python. */
    private long dateTime() {
        int first = at + 1;
        int end = first + DATE_TIME.length();
        if (end >= text.length || text[first + 4] != '-' || text[first + 7] != '-' || text[first + 10] != 'T'
            || text[first + 13] != ':' || text[first + 16] != ':') {
            return NO_MOMENT;
        }
        long seconds;
        try {
            seconds = LocalDateTime.of(
                digits(first, 4), digits(first + 5, 2), digits(first + 8, 2), digits(first + 11, 2), digits(first + 14, 2),
                digits(first + 17, 2)).toEpochSecond(ZoneOffset.UTC);
        } catch (DateTimeException none) {
            return NO_MOMENT;
        }
        at = end;
        int fraction = fraction();
        boolean isEnded = at + 1 < text.length && text[at] == 'Z' && text[at + 1] == '"';
        at += 2;
        return isEnded && seconds >= 0 && fraction >= 0 ? seconds * 1000 + fraction : NO_MOMENT;
    }

    /** So many digits as a number; -1: another character is among them. */
    private int digits(int first, int count) {
        int number = 0;
        for (int digit = first; digit < first + count; digit++) {
            if (text[digit] < '0' || text[digit] > '9') {
                return UNKNOWN;
            }
            number = 10 * number + text[digit] - '0';
        }
        return number;
    }

    /** The whole milliseconds of a fraction of a second, which need not be there; -1: it is none. */
    private int fraction() {
        if (text[at] != '.') {
            return 0;
        }
        int first = ++at;
        while (at < text.length && text[at] >= '0' && text[at] <= '9') {
            at++;
        }
        int count = at - first;
        int fraction = digits(first, Math.min(count, OF_MILLISECONDS));
        for (int missing = count; missing < OF_MILLISECONDS; missing++) {
            fraction *= 10;
        }
        return count == 0 || count > OF_FRACTION ? UNKNOWN : fraction;
    }

    /** A number that is a moment in ms by every reading. */
    private long milliseconds() {
        int first = at;
        if (!whole()) {
            return NO_MOMENT;
        }
        long number = 0;
        for (int digit = first; digit < at; digit++) {
            number = 10 * number + text[digit] - '0';
        }
        boolean isMoment = number <= LAST_MOMENT && (number < LIKE_SECONDS_FIRST || number > LIKE_SECONDS_LAST);
        return isMoment ? number : NO_MOMENT;
    }

    /** A whole number, of so many digits that it has one value everywhere. */
    boolean whole() {
        int first = at;
        while (at < text.length && text[at] >= '0' && text[at] <= '9') {
            at++;
        }
        return at > first && at - first <= DIGITS && (text[first] != '0' || at == first + 1);
    }

    /**
     * A text, an object or a list, up to its end: no two such values begin alike, so that one with the bytes of a value
     * that was accepted is that. Numbers and names are for Python.
     */
    private boolean delimited() {
        int depth = 0;
        do {
            if (at >= text.length) {
                return false;
            }
            byte c = text[at];
            if (c == '"') {
                if (!skipText()) {
                    return false;
                }
                continue;
            }
            if (c == '{' || c == '[') {
                depth++;
            } else if (c == '}' || c == ']') {
                depth--;
            } else if (depth == 0 || c >= 0 && c < ' ' && !isBlank(c)) {
                return false;
            }
            at++;
        } while (depth > 0);
        return depth == 0;
    }

    private boolean skipText() {
        at++;
        while (at < text.length && text[at] != '"') {
            if (text[at] == '\\') {
                at++;
            } else if (text[at] >= 0 && text[at] < ' ') {
                return false; // a key has control characters between its parts
            }
            at++;
        }
        return at++ < text.length;
    }

    /**
     * Where the properties have the resource's id as a text, or length() where they do not. -1: for Python, because the
     * id stands there more than once, or otherwise than as a text.
     */
    int repeated() {
        int first = start[PROPERTIES];
        int end = first + length[PROPERTIES];
        int texts = 0;
        int position = end;
        boolean isText = false;
        boolean isAlways = true; // as a text
        for (int index = first; index < end; index++) {
            if (text[index] == '\\') {
                return end; // Python replaces nothing either, see content_of in streaming/enforcer/answers.py
            }
            if (text[index] == '"') {
                isText = !isText;
                if (index + length[RESOURCE] <= end && isId(index)) {
                    isAlways &= isText;
                    texts++;
                    position = index;
                }
            }
        }
        return texts > 1 || !isAlways ? -1 : position;
    }

    private boolean isId(int index) {
        int id = start[RESOURCE];
        return Arrays.equals(text, index, index + length[RESOURCE], text, id, id + length[RESOURCE]);
    }
}
