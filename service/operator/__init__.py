"""The operator's routes: the cache and its care, health, metrics."""
