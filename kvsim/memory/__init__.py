"""Who holds which block. Read `paged.py` first."""
