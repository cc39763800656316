from loop import train

train("idle")
