"""What people look at: the live view, the terminal report."""
