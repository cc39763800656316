"""The application: the one round loop, the job tracker, and the ports they talk through."""
