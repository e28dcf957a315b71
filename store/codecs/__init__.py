"""An entry becomes buffers and again an entry: one file a codec.
`protocol.py` is what a new one fulfils."""
