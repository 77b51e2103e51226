"""Configuration: what can be chosen (registry, options) and how a command becomes a configuration (arguments)."""
