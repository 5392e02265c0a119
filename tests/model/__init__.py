"""Tests of what a token costs."""
