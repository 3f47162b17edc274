"""How hypothesis draws its examples: the same ones every time, however slow the machine.

To look further than these, now and then: ``scripts/test --hypothesis-profile=wide``.
"""

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("wide", deadline=None)
settings.load_profile("repeatable")
