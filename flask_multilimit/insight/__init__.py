"""What is so: values about limits, traffic, clients and changes, for people and programs. Every face shows these."""
