"""Chains: the KV of whole prompts and answers, kept segment by segment for the next prompt that begins alike.
Names, what is held under them, and what of a finished request may be kept; no model, no request."""
