"""Words of scripts and workers that others look for in their logs. Standard library only: this
file runs on nodes."""

import functools

CANNOT_SPLIT = "CannotSplit"  # the error's name by which a script says so, see updates.py
CANNOT_SHARE = "CannotShare"  # the same where several devices share steps, see gangs/errors.py
MEMBER_LOST = "MemberLost"  # a gang's member ends because of another one
BEGUN_AGAIN = "hadar: the loop over t.loader was begun again when no step was left"  # in a log
NO_GPU = "hadar: the node's GPU is not seen by its torch"  # a worker's last words, then a version
NO_UPDATE = "hadar: a step made no update"  # in a log
EARLY_UPDATE = "hadar: an update came before its step's last mini-batch"  # in a log
MISCOUNTED = "hadar: a scheduler was told another number of updates than the job's"  # in a log
RUNS_AHEAD = "hadar: a mini-batch is asked for before the update by the last one"  # in a log
LEFT_UNTRAINED = "hadar: optimizers that had made no update when no step was left"  # in a log
OWN_STATE = "hadar: the script's own state, which begins anew in every process"  # in a log
REFUSED = "refused.Refused: "  # the end of an error's name, before what is wrong
FIX = ". To mend it: "  # between what is wrong and what to change
SECOND_BACKWARD = "backward through the graph a second time"  # in an error of torch's


@functools.cache
def say_once(words: str) -> None:
    """To the log, however often it would be true."""
    print(words)
