"""The jobs room: a durable queue of work with priorities, keys, retries, limits and an account of everything."""
