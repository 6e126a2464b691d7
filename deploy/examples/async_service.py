"""A service on asyncio: many requests in flight at once, nothing blocks.

Run it with `python deploy/examples/async_service.py user:dana orders payments`.
"""

import asyncio
import sys

from streaming.client import AccessDenied, AsyncClient, Connection, acting_as

TOPICS = "kafka:topic:prod/main/{}"


async def visible(client: AsyncClient, topics: list[str]) -> list[str]:
    """The topics that the acting subject may see: one request for each topic, all sent at once."""
    decisions = await client.authorize_many(
        [{"resource": TOPICS.format(topic)} for topic in topics],
        system="lenses6",
        action="kafka:GetTopicDetails",
    )
    return [topic for topic, decision in zip(topics, decisions, strict=True) if decision]


async def main(user: str = "user:dana", *topics: str) -> None:
    """List, then try to delete."""
    async with AsyncClient(Connection.from_environment(), timeout=60) as client:

        @client.requires(
            system="lenses6", action="kafka:DeleteTopic", resource=lambda call: TOPICS.format(call["topic"])
        )
        async def delete(topic: str) -> None:
            print(f"deleted {topic}")

        with acting_as(user):
            print("visible:", ", ".join(await visible(client, list(topics))))
            for outcome in await asyncio.gather(*map(delete, topics), return_exceptions=True):
                if isinstance(outcome, AccessDenied):
                    print(f"not deleted: {outcome.decision.outcome}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
