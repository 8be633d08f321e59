"""The Spark session and its processes: all that depends on the inside of Spark."""
