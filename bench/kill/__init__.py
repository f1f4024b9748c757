"""Kills running pipelines for a long time and checks what is left: `python -m bench.kill`."""
