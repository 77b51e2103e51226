"""What people run around runs."""
