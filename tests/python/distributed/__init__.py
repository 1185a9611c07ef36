"""torch.distributed on spyre: two processes, each with a device of its own, do what they do on the CPU.

Starting two interpreters takes seconds, so tests of what goes well share a pair that stays (`ranks`). Processes meet
through a file: a port might be taken.
"""
