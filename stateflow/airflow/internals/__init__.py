"""Names of Airflow and its Spark provider that this package uses although they are not public. Everything of that kind is in
here, so that a new minor of Airflow is tried in one place: `tests/airflow/test_internals.py` holds each of these against the
Airflow that is installed.
"""
