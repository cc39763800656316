from loop import train

train("no result")
