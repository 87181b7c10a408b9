"""Whether everything is right and how fast it is on one device, in minutes.

What starts the parts (``__main__``, ``parts``, ``supervisor``, ``report``, ``wheels``) needs only Python's own
library, so that nothing that goes wrong on the device can take the report along. The parts run in processes of their
own, each with a ``Probe`` that sends what it finds.
"""
