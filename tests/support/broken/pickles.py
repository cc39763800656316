from loop import train

train("pickles")
