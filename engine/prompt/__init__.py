"""A conversation becomes a prompt: token ids, image spans, positions, the question's rows.
Pure: no tensors of the model, no store."""
