"""From models and targets to requests, with their environments, keys and expectations."""
