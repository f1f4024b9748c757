"""A warm host: one long-lived Spark application in which the runs of many jobs execute, each as a process of its own."""
