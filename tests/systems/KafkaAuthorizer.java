import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.InetAddress;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.internals.PluginMetricsImpl;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.common.utils.SecurityUtils;
import org.apache.kafka.metadata.authorizer.StandardAcl;
import org.apache.kafka.metadata.authorizer.StandardAuthorizer;
import org.apache.kafka.server.authorizer.Action;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.authorizer.AuthorizationResult;

/**
 * The broker's own authorizer, asked line by line, with tabulators between the fields: S (settings of a new authorizer:
 * whether it allows everyone if no ACL is found, super users), A (an ACL), Q (a question, answered in one line).
 */
public class KafkaAuthorizer {
    static class Context implements AuthorizableRequestContext {
        final KafkaPrincipal principal;
        final InetAddress address;

        Context(String principal, String host) throws Exception {
            this.principal = SecurityUtils.parseKafkaPrincipal(principal);
            this.address = InetAddress.getByName(host);
        }

        public String listenerName() { return "test"; }
        public SecurityProtocol securityProtocol() { return SecurityProtocol.PLAINTEXT; }
        public KafkaPrincipal principal() { return principal; }
        public InetAddress clientAddress() { return address; }
        public int requestType() { return 0; }
        public int requestVersion() { return 0; }
        public String clientId() { return "test"; }
        public int correlationId() { return 0; }
    }

    static StandardAuthorizer started(String open, String superUsers) {
        Map settings = new HashMap();
        settings.put("node.id", "1");
        settings.put("allow.everyone.if.no.acl.found", open);
        settings.put("super.users", superUsers);
        StandardAuthorizer authorizer = new StandardAuthorizer();
        authorizer.configure(settings);
        authorizer.withPluginMetrics(new PluginMetricsImpl(new Metrics(), new LinkedHashMap()));
        authorizer.loadSnapshot(new HashMap());
        authorizer.completeInitialLoad();
        return authorizer;
    }

    static StandardAcl acl(String[] f) {
        return new StandardAcl(ResourceType.fromString(f[5]), f[7], PatternType.fromString(f[6]), f[1], f[2],
            SecurityUtils.operation(f[3]), AclPermissionType.fromString(f[4]));
    }

    static Action action(String[] f) {
        ResourcePattern resource = new ResourcePattern(SecurityUtils.resourceType(f[4]), f[5], PatternType.LITERAL);
        return new Action(SecurityUtils.operation(f[3]), resource, 1, true, true);
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, false, "UTF-8");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        StandardAuthorizer authorizer = null;
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] f = line.split("\t", -1);
            if (f[0].equals("S")) {
                authorizer = started(f[1], f[2]);
            } else if (f[0].equals("A")) {
                f[5] = SecurityUtils.resourceType(f[5]).name();
                authorizer.addAcl(Uuid.randomUuid(), acl(f));
            } else {
                Object answer = authorizer.authorize(new Context(f[1], f[2]), Collections.singletonList(action(f))).get(0);
                out.println(answer == AuthorizationResult.ALLOWED ? "allow" : "deny");
            }
        }
        out.flush();
    }
}
