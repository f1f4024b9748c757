"""State as tables: `source` reads it, `canonical` writes it as Parquet, `load` makes state of tables again."""
