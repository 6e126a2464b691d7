"""Questions about past decisions, by what the topics still hold. It writes nothing and joins no group."""
