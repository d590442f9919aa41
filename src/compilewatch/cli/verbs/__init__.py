"""One module a verb, imported when the verb is called; each offers `command`."""
