"""Operators: each calls one function of the library, which the command line calls, too."""
