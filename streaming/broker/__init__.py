"""The embedded broker, for the demo and the tests."""
