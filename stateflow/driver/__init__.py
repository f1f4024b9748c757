"""Runs a job's driver as a process that outlives whoever started it, and follows it from there or from elsewhere."""
