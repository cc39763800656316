"""What its loop counts is not given to training."""

from counting import train

train(is_given=False)
