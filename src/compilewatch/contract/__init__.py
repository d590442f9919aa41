"""What parent and worker share: messages, failures, processes and the catalogue of targets."""
