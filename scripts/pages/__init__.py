"""What scripts/docs.py and scripts/newcomer.py know about the project's Markdown pages."""
