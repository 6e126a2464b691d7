"""The policies and facts as they were: rebuilt from the records of their topics."""
