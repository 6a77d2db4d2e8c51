"""The pictures that scripts/plot.py draws, a file for each kind."""
