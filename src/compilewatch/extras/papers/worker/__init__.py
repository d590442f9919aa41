"""Scripts that run generated code, inside of the sandbox. They import nothing of this package.

Their files are copied into the sandbox beside the generated module; see `papers.execution`.
"""
