"""A run held against what a real server measured."""
