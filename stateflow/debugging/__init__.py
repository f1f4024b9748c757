"""One key in one batch that was: its rows and its state as they were, run again by today's code under a debugger or in a test."""
