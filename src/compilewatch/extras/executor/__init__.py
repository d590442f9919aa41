"""The executor: a service that runs submitted code in sandboxes, and its client."""
