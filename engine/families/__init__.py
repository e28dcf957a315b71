"""Model architectures: one file a family, each a checkpoint turned into the arithmetic of its layers.
`base.py` says what the engine needs of a model."""
