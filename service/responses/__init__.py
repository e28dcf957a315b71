"""`/v1/responses`: the newer of OpenAI's dialects, without the state that it keeps elsewhere."""
