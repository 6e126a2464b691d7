"""`lockkeeper access-changes`: whose access a change of policies or facts turns, of what was decided lately.

`following` is pure: states of policies and facts, decisions, and what turns. `documents` reads policies and facts
change by change, `decisions` joins decisions with their requests, `output` writes records and positions in one
transaction, and `running` does it all until it is asked to stop.
"""
