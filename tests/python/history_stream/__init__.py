"""The stream of the history: to a file and to `flexmem watch`. What is in one is read by `flexmem`."""
