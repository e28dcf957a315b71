"""What an operator sees and does: listing, eviction, pins, quotas, verification.
Loads no entry, counts as no use."""
