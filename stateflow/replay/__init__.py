"""Batches that were, run again by other code on a fork: what they would have put out and kept, beside what they did."""
