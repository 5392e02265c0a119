"""What happens, in time."""
