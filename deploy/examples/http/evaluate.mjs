// Whether a subject may do something: node evaluate.mjs user:dana kafka:GetTopicDetails kafka:topic:prod/main/orders
// Prints allow or deny; exit code 0 for an allow alone. PDP_URL and PDP_TOKEN say whom to ask, and as whom.
const [subject, action, resource] = process.argv.slice(2);

/** Anything but an allow in time is a deny: another status, an error, no answer. */
async function isAllowed(subject, action, resource) {
  try {
    const response = await fetch(`${process.env.PDP_URL}/lenses6/access/v1/evaluation`, {
      method: "POST",
      headers: {
        authorization: `Bearer ${process.env.PDP_TOKEN}`,
        "content-type": "application/json",
      },
      body: JSON.stringify({
        subject: { type: "user", id: subject },
        action: { name: action },
        resource: { type: "lrn", id: resource },
      }),
      redirect: "error",
      signal: AbortSignal.timeout(1000),
    });
    if (response.status !== 200) return false;
    const answer = await response.json();
    return answer.decision === true && answer.context.enforced !== false;
  } catch (error) {
    console.error(`no answer: ${error.message}`);
    return false;
  }
}

const allowed = await isAllowed(subject, action, resource);
console.log(allowed ? "allow" : "deny");
process.exitCode = allowed ? 0 : 1;
