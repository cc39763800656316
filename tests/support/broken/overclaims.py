from loop import train

train("overclaims")
