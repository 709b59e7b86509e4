"""The commands of ``flask multilimit``, a file each."""
