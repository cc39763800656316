from loop import train

train("fails at the end")
