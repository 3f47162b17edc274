"""Errors that a person at the keyboard can act on; each carries its exit code."""

import errno


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether an error is Python's, torch's, numpy's or the system's word for a lack of memory."""
    words = ("allocate memory", "out of memory", "std::bad_alloc")
    return (
        isinstance(error, MemoryError)
        or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
        or (isinstance(error, RuntimeError) and any(word in str(error) for word in words))
    )


class LstlmError(Exception):
    """Base of every error that lstlm raises on purpose: one readable line."""

    exit_code = 1


class ConfigError(LstlmError, ValueError):
    """A wrong flag, argument or configuration value."""

    exit_code = 2


class UnknownWord(ConfigError, KeyError):
    """A word without a vector."""

    __str__ = Exception.__str__  # a KeyError would print its message in quotes


class DataError(LstlmError):
    """A missing, malformed or damaged input file."""

    exit_code = 3


class CheckpointError(LstlmError):
    """A missing, foreign or damaged checkpoint or run folder."""

    exit_code = 3


class NumericsError(LstlmError):
    """A computation that would diverge or leave the finite numbers; raised before anything is changed."""

    exit_code = 4
