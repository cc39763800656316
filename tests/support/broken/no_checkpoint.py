from loop import train

train("no checkpoint")
