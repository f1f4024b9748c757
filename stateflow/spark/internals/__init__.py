"""Everything without a public name that the library uses of PySpark, Spark, Delta and the libraries they bring along. Every
other room uses public names only. Functions here return Python's own values, public ones, or values of this room: no bare
object of the JVM. Each function has an entry (`@internal`) with the names that it rests on. `tests/spark/test_internals.py`
holds each name against what is installed; docs/spark-internals.md is the table.
"""
