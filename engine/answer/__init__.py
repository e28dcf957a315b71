"""Logits become text and a report: sampling, detokenising, stop strings, what was reused.
Nothing here runs the model."""
