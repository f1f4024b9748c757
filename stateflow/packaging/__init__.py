"""What a cluster needs to run a pipeline, as files: the environment of its executors, the pipeline, the lock.

`build.package` builds them. Nothing here imports Spark.
"""
