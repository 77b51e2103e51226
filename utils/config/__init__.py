"""Configuration: registries, options, parsing of commands and files, resolution of defaults."""
