"""Rewrites of source lines, by reviewed rules on the syntax tree.

A rule is a function with a row in `rules.RULES`. Its row says for which reasons it is tried and has
an example before and after, which its test and the documentation use. A rule must be conservative:
it says why what it writes computes the same, and under which conditions.
"""
