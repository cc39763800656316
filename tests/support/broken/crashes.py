from loop import train

train("crashes")
