from loop import train

train("late")
