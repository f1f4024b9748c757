"""What spark-submit is given to run. Alone in its folder: Spark puts the folder of an application on Python's path."""
