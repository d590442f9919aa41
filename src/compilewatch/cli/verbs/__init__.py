"""One module per command, imported when the command is called; each defines `command`."""
