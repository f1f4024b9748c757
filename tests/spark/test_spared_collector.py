"""Spark's worker looks for garbage behind each task: at what the tasks made, not at the modules that it imported."""

import subprocess
import sys

ALIVE = """
import gc
from stateflow.spark.task.subtask import spare_the_collector

spare_the_collector()  # the first task
import pandas
gc.collect()
for _ in range(2):
    spare_the_collector()
    made = [[number] for number in range(100)]
    gc.collect()
print(len(gc.get_objects()))
"""


def test_what_the_first_task_imported_is_not_looked_at_behind_each_task() -> None:
    printed = subprocess.run([sys.executable, "-c", ALIVE], capture_output=True, text=True, check=True).stdout
    assert 100 <= int(printed) < 1000


def test_what_tasks_make_is_still_looked_at() -> None:
    of_later_tasks = ALIVE.replace("range(2)", "range(20)").replace(
        "made = [", "made = [made if _ else None] + ["
    )
    printed = subprocess.run(
        [sys.executable, "-c", of_later_tasks], capture_output=True, text=True, check=True
    ).stdout
    assert int(printed) > 18 * 100
