from loop import train

train("dies")
