"""The script for `spark-submit`, in a folder of its own, because Spark puts the folder of its script on Python's path.

`python -m shallow_mirror.spark_submit` prints where it is.
"""
