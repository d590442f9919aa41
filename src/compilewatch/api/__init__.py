"""What commands, stages of Jenkins and Python callers share; commands are shells over it.

It is the only package that sees store, plan, launchers and sinks together.
"""
