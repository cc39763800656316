from loop import train

train("no steps")
