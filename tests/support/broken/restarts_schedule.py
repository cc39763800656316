from loop import train

train("restarts schedule")
