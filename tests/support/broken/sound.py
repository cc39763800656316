from loop import train

train()
