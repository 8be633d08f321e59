"""Slots: tasks that copy planned ranges, each in a Kafka transaction of its own."""
