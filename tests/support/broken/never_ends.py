from loop import train

train("never ends")
