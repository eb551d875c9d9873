"""Work in processes of their own, which may hang, exit or die."""
