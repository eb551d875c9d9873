"""Models the package can make by itself, each saved as a Hugging Face directory."""
