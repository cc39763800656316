from loop import train

train("forgets weights")
