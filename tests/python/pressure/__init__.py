"""The scenarios of memory pressure that must hold, by area; docs/verification.md has the list.

Each really exhausts the device and asserts the counters. Interleavings are forced by events, or by waiting until the
gate reports that a request waits, never by sleeping and hoping. Two watchdogs dump all stacks of a hang: conftest.py's
for each test, and one for each script that runs in a process of its own.
"""
