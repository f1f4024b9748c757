"""Ready-made operators: aggregates, windows, deduplication. They compute whole columns, without an object per row or key."""
