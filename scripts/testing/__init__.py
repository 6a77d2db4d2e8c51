"""The parts of scripts/test.py: build, plan, work, report."""
