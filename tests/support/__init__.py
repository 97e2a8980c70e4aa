"""What tests of several rooms share: small models, made-up tables, finished OUTs, services."""
