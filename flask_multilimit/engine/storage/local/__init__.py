"""``local://``: one server for all processes of a machine."""
