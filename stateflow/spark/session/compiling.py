"""Makes Java compile a driver's code later than by default, because most drivers live for less than a minute.

A third of what a short run computes is Java compiling Spark's own code, most of which runs no more once it is compiled. Java
compiles a method when it has counted so many calls and loops. With four times as many, a short run computes a fifth
less. The code of a long run, which runs millions of times, gets there with its first batches.
"""

from __future__ import annotations

import os

from stateflow.spark.session.class_data import JAVA_READS

LATER = "-XX:CompileThresholdScaling=4"
_SPEAK_OF_IT = ("CompileThreshold", "TieredCompilation", "TieredStopAtLevel", "-XX:Tier", "-Xint", "-Xcomp")


def options(user_options: str = "") -> str:
    """An option for a driver's JVM; empty when the user's own options say how Java compiles."""
    all_options = " ".join((user_options, *(os.environ.get(name, "") for name in JAVA_READS)))
    return "" if any(word in all_options for word in _SPEAK_OF_IT) else LATER
