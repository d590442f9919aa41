"""The only part that imports torch; it runs inside an environment, in a child per request.

It imports nothing of the package but `records`, `errors` and itself, and needs only torch,
transformers, msgspec and safetensors.
"""
