"""Hugging Face model directories, and the models that evenstep makes itself. Start with `directory`.

    config          the blocks `policy.tiny` and `warmup`
    directory       a model directory without torch: its problems, size and identity, and the errors about models
    weights         weights by name, under their names in files, and as numpy arrays; a model without them
    loading         a model with exactly the weights of its files, and its tokenizer; refuses all others
    template_syntax whether a chat template is Jinja, before any process renders it
    render_process  the program of the process that renders chat templates
    renderer        chat templates rendered there, with a deadline and a memory limit
    text            from a task's texts to tokens and back
    unknown         texts of which a tokenizer does not know all
    tiny            the small transformer of the default run, and its supervised warm-up
    smollm2         SmolLM2-135M-Instruct, converted from a package
    final           the trained policy as a model directory

`config` and `directory` import neither torch nor transformers: the controller and the command line import them.
"""
