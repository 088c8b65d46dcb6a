"""HAProxy in front of servers: a user stays on one, what is too much is refused before Triton, servers change."""
