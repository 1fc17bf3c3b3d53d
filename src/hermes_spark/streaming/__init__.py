"""The driver's side: sources, the fleet of hosts, hand-off, commit, publish, and the query around them."""
