"""`/v1/messages`: Anthropic's dialect of the conversation."""
