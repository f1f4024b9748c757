"""Joins over columns: rows wait in state as blocks, and partners are found by sorting."""
