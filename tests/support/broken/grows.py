from loop import train

train("grows")
