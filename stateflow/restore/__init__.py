"""Restoring a job: from which snapshot, what that would mean, and doing it."""
