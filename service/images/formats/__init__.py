"""A file a kind of picture: its parts found by bounded parsing, and nothing but its pixels handed to the codec."""
