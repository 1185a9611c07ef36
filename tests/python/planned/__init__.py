"""Planned collection (torch_spyre.gc): what a plan does with the collector, and when it collects.

Across ranks: distributed/test_planned.py. In trainers: programs/test_trainer_callbacks.py.
"""
