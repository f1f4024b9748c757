"""Folders of files with a log of their own: for readers that know Parquet, JSON or CSV, and nothing of Delta."""
