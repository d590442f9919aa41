"""What commands, stages of Jenkins and Python callers share; commands are shells over it."""
