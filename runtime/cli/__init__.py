"""The commands of `evenstep`, one file each."""
