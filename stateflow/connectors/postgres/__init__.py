"""Postgres: rows are copied in one transaction with the slot that they are of."""
