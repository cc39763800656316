from loop import train

train("begins anywhere")
