"""What the library uses of PySpark, Spark, Delta and what they bring along that has no public name.

No other room reaches beyond their public names, and what comes out of here is Python's, public, or a value of this room: no bare
object of the JVM. Each function has an entry (`@internal`) with the names that it rests on. `tests/spark/test_internals.py` holds each
name against what is installed; docs/spark-internals.md is the table.
"""
