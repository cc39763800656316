"""What runs on a node. Imports nothing of the rest of hadar."""
