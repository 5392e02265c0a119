"""Who asks, when, and for what."""
