from loop import train

train("same data")
