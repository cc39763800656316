from loop import train

train("always saves")
