"""What is stored and under which name: keys, the record format, its buffers, and the entry it holds.
The lowest room: it knows no tier and no request."""
