"""Real processes that are killed, stopped, frozen and cut off, and what is true afterwards."""
