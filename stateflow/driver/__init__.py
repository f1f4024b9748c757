"""Runs a job's driver as a process that outlives its starter. Any process may follow that driver, on any host."""
