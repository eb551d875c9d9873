"""The state machines: a rule table each, and what drives them."""
