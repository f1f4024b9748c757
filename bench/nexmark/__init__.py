"""Nexmark: the published questions about an auction site, asked of Stateflow and of DuckDB over the same events."""
