"""Found by PySpark in every session: packages of this form of name bring a data source with them."""

from stateflow.spark.state_tables.source import StateDataSource as DefaultSource

__all__ = ["DefaultSource"]
