"""Scripts in the styles that people bring, each by hand and under hadar."""
