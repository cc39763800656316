from loop import train

train("forgets momentum")
