"""An image as the caller names it becomes upright RGB and a digest: fetch, sniff, decode, remember."""
