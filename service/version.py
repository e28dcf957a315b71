"""The one number. A test holds it equal to `pyproject.toml`: the program runs from a checkout and has no
metadata."""

VERSION = "0.1.0"
