"""The only package that imports torch. It runs in an environment, in one child per request.

It imports nothing of the package but `records`, `errors` and itself, and needs only torch,
transformers, msgspec and safetensors.
"""
