"""Hostile chat templates: Jinja programs put together from loops, macros, filters, formats, products of texts
and attempts to reach Python's own attributes.
"""

from __future__ import annotations

from random import Random

# Small sizes mostly, so that most programs are quick and many can be tried.
_BIG = (*("2", "3", "9", "40") * 6, "400", "9999", "99999", "4000000", "10**9", "2**63", "-1", "10**400")
_ATTRIBUTES = (
    "__class__",
    "__mro__",
    "__globals__",
    "__init__",
    "gi_frame",
    "f_globals",
    "__subclasses__",
    "mro",
)
_FILTERS = (
    *(
        "list",
        "string",
        "length",
        "tojson",
        "upper",
        "sort",
        "unique|list",
        "reverse|list",
        "sum",
        "first",
        "int",
    ),
    *(
        "join(',')",
        "join(x)",
        "center(N)",
        "indent(N)",
        "replace('a', x)",
        "wordwrap(N)",
        "batch(N)|list",
        "trim",
    ),
    *(
        "tojson(indent=N)",
        "tojson(indent=x)",
        "tojson(separators=(x, x))",
        "format(1)",
        "int(base=16)",
        "urlize",
    ),
    *(
        "map('string')|list",
        "select('in', x)|list",
        "groupby('role')|list",
        "dictsort",
        "slice(N)|list",
        "safe",
    ),
    *(
        "attr('__class__')",
        "filesizeformat",
        "round(N)",
        "truncate(N)",
        "wordcount",
        "xmlattr",
        "striptags",
        "pprint",
    ),
)
_METHODS = (
    *(
        "format(1)",
        "format(x, w=x)",
        "replace('a', x)",
        "ljust(N)",
        "zfill(N)",
        "expandtabs(N)",
        "join(x)",
        "split()",
    ),
    *(
        "encode()",
        "count('a')",
        "splitlines()",
        "translate({97: x})",
        "partition('a')",
        "index('a')",
        "append(x)",
    ),
    *(
        "update(x)",
        "items()",
        "format_map({})",
        "title()",
        "casefold()",
        "rjust(N)",
        "center(N)",
        "startswith(x)",
    ),
)
_ATOMS = (
    *("x", "messages", "messages[0].content", "'a'", "'😀'", "1", "ns.x", "range(N)", "[]", "{}", "'%9999d'"),
    *("'{:>9999}'", "'{0.__class__}'", "loop.index", "bos_token", "true", "1.5e308", "undefined_name"),
    *("strftime_now('%Y')", "cycler(1,2)", "joiner(x)", "namespace(x=1)", "dict(a=1)", "lipsum(5)", "N"),
)
_OPERATORS = ("+", "-", "*", "/", "//", "%", "**", "~", "==", "<", "in", "and", "or", "is not none and")


def expression(rng: Random, depth: int = 3) -> str:
    if not depth or rng.random() < 0.2:
        return rng.choice(_ATOMS).replace("N", rng.choice(_BIG))
    inner = expression(rng, depth - 1)
    kind = rng.randrange(9)
    if kind == 0:
        return f"({inner}) {rng.choice(_OPERATORS)} ({expression(rng, depth - 1)})"
    if kind == 1:
        return f"({inner})|{rng.choice(_FILTERS)}".replace("N", rng.choice(_BIG))
    if kind == 2:
        return f"({inner}).{rng.choice(_METHODS)}".replace("N", rng.choice(_BIG))
    if kind == 3:
        return f"({inner}) * {rng.choice(_BIG)}"
    if kind == 4:
        return f"({inner}).{rng.choice(_ATTRIBUTES)}"
    if kind == 5:
        return f"[{', '.join([inner] * rng.choice([1, 2, 8]))}]"
    if kind == 6:
        return f"({inner})[{expression(rng, 0)}]"
    if kind == 7:
        return f"{{'a': {inner}, 'b': ({inner})}}"
    return f"({inner} if {expression(rng, 0)} else {expression(rng, 0)})"


def _statement(rng: Random, depth: int) -> str:
    kind = rng.randrange(9)
    if kind == 0 or not depth:
        return f"{{{{ {expression(rng, rng.choice([1, 1, 2, 3]))} }}}}"
    body = "".join(_statement(rng, depth - 1) for _ in range(rng.choice([1, 1, 2])))
    if kind == 1:
        values = rng.choice([f"range({rng.choice(_BIG)})", "messages", "x", expression(rng, 1)])
        return f"{{% for i in {values} %}}{body}{{% endfor %}}"
    if kind == 2:
        return f"{{% set x = {expression(rng)} %}}{body}"
    if kind == 3:
        return f"{{% set ns.x = {rng.choice(['ns.x ~ ns.x', '[ns.x, ns.x]', expression(rng)])} %}}{body}"
    if kind == 4:
        return f"{{% if {expression(rng, 2)} %}}{body}{{% else %}}{body}{{% endif %}}"
    if kind == 5:
        call = rng.choice(["f(n)", "f(n) ~ f(n)", "n"])
        return f"{{% macro f(n) %}}{{{{ {call} }}}}{body}{{% endmacro %}}{{{{ f({expression(rng, 1)}) }}}}"
    if kind == 6:
        return f"{{% set x %}}{body * rng.choice([1, 3])}{{% endset %}}"
    if kind == 7:
        return f"{{% filter {rng.choice(_FILTERS)} %}}{body}{{% endfilter %}}".replace("N", rng.choice(_BIG))
    return body * rng.choice([1, 2, 5, 20])


def program(rng: Random) -> str:
    """One template; most are syntactically right, many ask for far too much."""
    start = rng.choice(
        ["{% set ns = namespace(x='aaaaaaaa') %}{% set x = 'a' * 1000 %}", "{% set x = 'b' %}", ""]
    )
    source = start + "".join(_statement(rng, rng.choice([1, 2, 3])) for _ in range(rng.choice([1, 2, 4])))
    if rng.random() < 0.1:
        at = rng.randrange(len(source) + 1)
        source = source[:at] + rng.choice(["{%", "}}", "{{", "'", "\0", "(", "{#"]) + source[at:]
    if rng.random() < 0.004:
        loop = "{% for i in range(60) %}"
        source = loop * 4 + source + "{% endfor %}" * 4
    # Compiling takes its time too; a long one now and then is enough.
    return source[: 3000 if rng.random() < 0.98 else 200_000]


# Small programs that were seen to take minutes or gigabytes, in families: N is a size, and what stands in
# angle marks is repeated N times, where K is the number of the repeat.
_FAMILIES = {
    "format fields": "{{ ('{' ~ ':'*N00 ~ '}').format(1) }}",
    "whole division": "{% set a=('f'*N000)|int(base=16) %}{% set b=('f'*N00)|int(base=16) %}{{ a//b }}",
    "straight line": "{% set a='x'*4000000 %}{% set b='x'*2000000~'y' %}«{%if b in a%}{%endif%}»",
    "json indent": "{{ range(N)|list|tojson(indent='x'*30000) }}",
    "json separators": "{{ range(N)|list|tojson(separators=('x'*30000, ':')) }}",
    "format widths": "{{ ('{0:>9999}' * N).format(1) }}",
    "percent widths": "{{ ('%9999d' * N) % (1, 2) }}",
    "many values": "{% set n=namespace() %}«{% set n.aK = '😀'*3900000 %}»",
    "long source": "«{{a}}»",
    "long expression": "{{ a«~a» }}",
    "deep blocks": "«{% if true %}»",
    "nested brackets": "{{ «[»",
    "string times": "{{ ('a'*N000) * N }}",
}
BOMBS = tuple(_FAMILIES)


def bomb(name: str, size: int) -> str:
    before, _, rest = _FAMILIES[name].partition("«")
    repeated, _, after = rest.partition("»")
    middle = "".join(repeated.replace("K", str(number)) for number in range(size))
    return (before + middle + after).replace("N", str(size))
