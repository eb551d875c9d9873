"""The engine on transformers and torch. Start with `engine`; `loop` runs it in an asyncio process.

`cached_model` does the forward passes, `sampling` draws tokens, and `self_check` refuses models whose logits the cache
would change.
"""
