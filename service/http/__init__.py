"""What HTTP needs whatever the route: server, bounds, keys, admission, bodies, streams, errors."""
