from loop import train

train("diverges")
