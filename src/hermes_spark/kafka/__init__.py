"""Kafka without Spark: how to reach it, what is known of a topic, records that are sent until the broker has them."""
