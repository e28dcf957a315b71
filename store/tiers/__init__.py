"""Where records lie: memory, LMDB, Redis, one file or folder a tier.
`protocol.py` is what a new one fulfils; tiers move bytes and decide nothing about them."""
