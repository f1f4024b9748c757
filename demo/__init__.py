"""`make demo`: a pipeline that runs, carries on, is killed and recovers before your eyes."""
