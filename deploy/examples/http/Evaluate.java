import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * Whether a subject may do something: java Evaluate.java user:dana kafka:GetTopicDetails kafka:topic:prod/main/orders
 *
 * <p>Prints allow or deny; exit code 0 for an allow alone. PDP_URL and PDP_TOKEN say whom to ask, and as
 * whom. It needs nothing beside Java 17; an application that has a JSON library reads `decision` and
 * `context.enforced` with it.
 */
public class Evaluate {
    // Without TLS, Java would ask for an upgrade to HTTP/2, which the server does not have.
    private static final HttpClient CLIENT = HttpClient.newBuilder()
            .version(HttpClient.Version.HTTP_1_1)
            .connectTimeout(Duration.ofSeconds(1))
            .build();

    /** Anything but an allow in time is a deny: another status, an error, no answer. */
    static boolean isAllowed(String subject, String action, String resource) {
        String body = "{\"subject\": {\"type\": \"user\", \"id\": %s}, \"action\": {\"name\": %s}, \"resource\": {\"type\": \"lrn\", \"id\": %s}}"
                .formatted(quoted(subject), quoted(action), quoted(resource));
        HttpRequest request = HttpRequest.newBuilder(
                        URI.create(System.getenv("PDP_URL") + "/lenses6/access/v1/evaluation"))
                .header("authorization", "Bearer " + System.getenv("PDP_TOKEN"))
                .header("content-type", "application/json")
                .POST(HttpRequest.BodyPublishers.ofString(body))
                .build();
        try {
            // The request's own timeout is over with the response's headers: its body may take any time.
            HttpResponse<String> response = CLIENT.sendAsync(request, HttpResponse.BodyHandlers.ofString())
                    .get(1, TimeUnit.SECONDS);
            // Not enforced, in shadow mode: it says what would be decided, and allows nothing.
            return response.statusCode() == 200
                    && response.body().startsWith("{\"decision\":true,")
                    && !response.body().contains("\"enforced\":false");
        } catch (ExecutionException | TimeoutException error) {
            System.err.println("no answer: " + error);
            return false;
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            return false;
        }
    }

    private static String quoted(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            quoted.append(c == '"' || c == '\\' || c < ' ' ? "\\u%04x".formatted((int) c) : String.valueOf(c));
        }
        return quoted.append('"').toString();
    }

    public static void main(String[] arguments) {
        boolean allowed = isAllowed(arguments[0], arguments[1], arguments[2]);
        System.out.println(allowed ? "allow" : "deny");
        System.exit(allowed ? 0 : 1);
    }
}
