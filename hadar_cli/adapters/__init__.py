"""The world behind the ports: files, processes, tensors, configuration."""
