"""Tools: what they are (`registry`), how one is called (`http`), and the demo's own (`demo`)."""
