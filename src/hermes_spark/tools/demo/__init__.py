"""The demo's tool service and messages."""
