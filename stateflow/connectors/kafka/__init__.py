"""Kafka: topics as users name them, and how their messages become rows, and rows messages."""
