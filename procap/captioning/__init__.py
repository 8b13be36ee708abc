"""Trained captioners as a library: an address and two pictures in, a sentence and its reasons out."""
