"""Kafka: clients, topics and their settings, permissions, reading to the last stable offset, publishing."""
