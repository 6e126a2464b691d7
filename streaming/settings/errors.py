"""What is wrong with settings."""


class SettingsError(Exception):
    """A setting is unknown or wrong; the message names it, its value and what would fix it."""
