"""Iceberg by PyIceberg: tasks write data files, and a commit adds them together with the slot that they are of."""
