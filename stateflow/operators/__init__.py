"""Running user code over rows and a state backend, without Spark: what a task and the test harness share."""
