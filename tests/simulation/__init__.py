"""The whole service in one thread of virtual time: real code, simulated machine. See `world`."""
