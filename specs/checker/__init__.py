"""The checker: it visits every state that a run can reach, and looks for one that breaks a property.

liveness  `eventually`, on the graph of all states
plain     the search on a page: the reference that tests compare `explore` with
explore   the same at speed, with bounds, liveness and a verdict; start here
closing   whether the step of a live run can still close, for `evenstep explain` and `report`
"""
