"""What a step of training consists of: each operation in torch, for any device, and compiled, for the CPU.

`ops` has one function an operation and chooses; `reference` is the torch form, `native/` the compiled one.
"""
