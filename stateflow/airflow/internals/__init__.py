"""What this package uses of Airflow and of its Spark provider that has no public name.

Everything of that kind is in here, so that a new minor of Airflow is tried in one place: `tests/airflow/test_internals.py` holds
each of these against the Airflow that is installed.
"""
