"""torch.compile on spyre: compiled functions give what they give on the CPU, uncompiled.

Generating and compiling C++ takes seconds for each kernel, so a test has many results of one function rather than many
functions.
"""
