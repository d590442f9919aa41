"""A result in the terminal, which `explain` prints and `print` shows of a `CheckResult`."""
