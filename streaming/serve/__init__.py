"""A policy decision point over HTTP: the OpenID AuthZEN Authorization API 1.0, decided in process."""
