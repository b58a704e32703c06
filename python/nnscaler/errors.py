"""Errors that nnscaler raises: one line each, where, what with the facts, what to do."""


class NnscalerError(Exception):
    """Base of all errors raised by nnscaler."""


class InputError(NnscalerError, ValueError):
    """What was given is wrong and its giver can mend it."""


class InfeasibleError(NnscalerError):
    """No solution exists."""


class InternalError(NnscalerError):
    """A bug in nnscaler."""


class UnsupportedError(NnscalerError, NotImplementedError):
    """Asked for something that nnscaler does not offer."""
