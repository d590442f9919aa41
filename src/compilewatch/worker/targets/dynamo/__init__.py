"""The target `dynamo`: graph breaks of `torch.compile`, each with its cause and line."""
