"""What goes wrong in the lab: told by vm-test as one message, without a traceback."""


class LabProblem(Exception):
    """The lab cannot do what was asked; the text says why and what to do."""
