"""Stateflow's pages in Airflow's UI, their API and the metrics of all jobs.

Only `plugin` may be imported by every Airflow process; the rest is loaded by the API server alone.
"""
