"""Tests of kvsim, and checks of it against folders of known figures."""
