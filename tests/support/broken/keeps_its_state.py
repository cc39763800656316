"""What its loop counts is given to training."""

from counting import train

train(is_given=True)
