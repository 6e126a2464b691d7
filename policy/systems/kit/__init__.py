"""What the packages of systems are made with: the protocol, the validator, claims, catalogues."""
