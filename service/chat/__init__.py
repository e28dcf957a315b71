"""`POST /v1/chat`: from a body to a conversation, from the engine's events to the dialects' answers."""
