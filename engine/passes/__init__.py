"""The passes over a prompt's rows: compile, restore, score, refresh, decode, and what they share.
Entries and a layout come in; KV of a request and first logits leave."""
