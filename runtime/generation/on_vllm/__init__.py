"""The engine on vLLM (an extra). `setup` maps the configuration to vLLM's arguments; `engine` runs vLLM."""
