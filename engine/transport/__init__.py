"""How a request reaches a worker and its events come back: a supervised process, or a thread.
Nothing below imports it."""
