"""How long state lives, and what finds it when it expires."""
