from loop import train

train("deaf")
