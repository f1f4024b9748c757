"""How long state lives, and the index that finds what has expired."""
