"""Chat templates that do to a message that is `bad` what none should, by what they do; other messages are shown."""

_AT = "\n{%% for m in messages %%}\n%s{{ m.content }}{%% endfor %%}"
_LOOP = "{% for i in range(10**5) %}{% for j in range(10**5) %}{{ i if false }}{% endfor %}{% endfor %}"
_BAD = {
    "loops": _LOOP,
    "computes": "{{ (m.content | length) ** (10 ** 9) }}",
    "compares": (
        "{% set n = m.content | length %}"
        "{% set a = [[[n]*999]*999]*9999 %}{% set b = [[[n]*999]*999]*9999 %}{{ a == b }}"
    ),
    "allocates": "{{ 'x' * 10**10 }}",
    "grows": "{% set ns = namespace(a=['x']) %}{% for i in range(99) %}{% set ns.a = ns.a + ns.a %}{% endfor %}",
    "long": "{{ 'x' * 17000000 }}",
    "raises": "{{ raise_exception('not this one') }}",
    "divides": "{{ 1 // (m.content | length - 3) }}",
    "recurses": "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
    "escapes": "{{ ''.__class__.__mro__ }}",
    "halves": "{{ '\\ud800' }}",
    "changes": "{{ messages.append(m) }}",
}
TEMPLATES = {does: _AT % f"{{% if m.content == 'bad' %}}{code}{{% endif %}}" for does, code in _BAD.items()}
ALWAYS = {does: _AT % code for does, code in _BAD.items()}
"""Of any message."""
