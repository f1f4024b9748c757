"""The syntax of conditions: sqlglot reads them as Spark's SQL, and what is not on the lists here is refused.

Only this file imports sqlglot, and `conditions` imports this file when it meets a condition that is more than a column.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from sqlglot import ParseError, Token, TokenType, exp
from sqlglot.dialects.spark import Spark

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)"
    r"|(?P<text>'(?:[^'\\]|''|\\.)*')|(?P<name>`[^`]+`|[A-Za-z_]\w*)"
    r"|(?P<sign>(?!--|/\*|<=>)(?:<>|!=|<=|>=|==|[-+*/%(),<>=])))",
    re.S,
)
"""Two signs that begin a comment are nothing else."""
_SIGNS = {
    "=": TokenType.EQ,
    "==": TokenType.EQ,
    "<>": TokenType.NEQ,
    "!=": TokenType.NEQ,
    "<": TokenType.LT,
    "<=": TokenType.LTE,
    ">": TokenType.GT,
    ">=": TokenType.GTE,
    "+": TokenType.PLUS,
    "-": TokenType.DASH,
    "*": TokenType.STAR,
    "/": TokenType.SLASH,
    "%": TokenType.MOD,
    "(": TokenType.L_PAREN,
    ")": TokenType.R_PAREN,
    ",": TokenType.COMMA,
}
_SYNONYMS = {"==": "=", "!=": "<>"}
_ENDS_A_VALUE = {TokenType.IDENTIFIER, TokenType.R_PAREN, TokenType.NULL, TokenType.TRUE, TokenType.FALSE}

_NEGATED = re.compile(r"\s*(IN|BETWEEN|LIKE)\b", re.I)
"""What may follow a NOT behind a value."""

_CONDITION, _COMPARED, _SUM, _PRODUCT, _FACTOR = 0, 3, 4, 5, 6
_OR, _AND, _NOT = 0, 1, 2
_BINARY: dict[Any, tuple[str, int, int]] = {
    exp.Or: ("OR", _OR, _OR),
    exp.And: ("AND", _AND, _AND),
    exp.EQ: ("=", _COMPARED, _SUM),
    exp.NEQ: ("<>", _COMPARED, _SUM),
    exp.LT: ("<", _COMPARED, _SUM),
    exp.LTE: ("<=", _COMPARED, _SUM),
    exp.GT: (">", _COMPARED, _SUM),
    exp.GTE: (">=", _COMPARED, _SUM),
    exp.Is: ("IS", _COMPARED, _SUM),
    exp.Like: ("LIKE", _COMPARED, _SUM),
    exp.Add: ("+", _SUM, _PRODUCT),
    exp.Sub: ("-", _SUM, _PRODUCT),
    exp.Mul: ("*", _PRODUCT, _FACTOR),
    exp.Div: ("/", _PRODUCT, _FACTOR),
    exp.Mod: ("%", _PRODUCT, _FACTOR),
}
"""Per class the operation, how tightly it binds, and how tightly what stands to its right has to. Of comparisons in a row, and of `IS` after
one, sqlglot says another meaning than Spark: they need parentheses."""
_HARMLESS = frozenset({"this", "expression", "expressions", "low", "high", "quoted", "safe", "negate"})
"""Arguments of sqlglot's nodes that are read here or change nothing. Any other one would be an option of SQL that is passed over."""


@dataclass(frozen=True)
class SyntaxNode:
    """A part of a condition as it was written: an operation, or a leaf and its text."""

    operation: str
    arguments: tuple[SyntaxNode, ...] = ()
    text: str = ""


class NotReadError(Exception):
    """`at` is the rest of the condition that cannot be read."""

    def __init__(self, at: str) -> None:
        super().__init__(at)
        self.at = at


class FunctionCallError(Exception):
    """Conditions have no functions; the text is its name."""


def read(text: str, words: Collection[str]) -> SyntaxNode:
    """`words` are those of the language, any other one is a name. Raises NotReadError, FunctionCallError, and RecursionError of what is nested
    too deeply."""
    return _Reading(text, words).node()


@dataclass(frozen=True)
class _Leaf:
    kind: str
    text: str
    start: int


class _Reading:
    def __init__(self, text: str, words: Collection[str]) -> None:
        self._text, self._words = text, words
        self._leaves: list[_Leaf] = []
        self._written: list[str] = []
        """The tokens that the tree stands for."""

    def node(self) -> SyntaxNode:
        tokens = list(self._tokens())
        if not tokens or tokens[-1].token_type not in _ENDS_A_VALUE:
            raise NotReadError("")
        parser = Spark().parser(error_message_context=len(self._text))
        try:
            (tree,) = parser.parse_into(exp.Condition, tokens, self._text)
        except ParseError as error:
            found = error.errors[0]
            raise NotReadError(f"{found.get('highlight') or ''}{found.get('end_context') or ''}") from None
        if tree is None:
            raise NotReadError(self._text)
        node = self._node(tree, _CONDITION)
        if not self._is_all(tokens):
            raise NotReadError(self._text)  # sqlglot passes over some: it reads `AND (a` as `(a)`
        return node

    def _tokens(self) -> Iterator[Token]:
        """For sqlglot every column, text and number is an identifier, its place among them: a column may be called `date` or `case`, and
        what is in a text is read as Spark reads it."""
        at, text, before = 0, self._text.rstrip(), TokenType.SEMICOLON
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise NotReadError(text[at:].strip())
            raw = found[str(found.lastgroup)]
            start, at = at, found.end()
            kind = TokenType[raw.upper()] if raw.upper() in self._words else _SIGNS.get(raw)
            if kind is None:
                self._leaves.append(_Leaf(str(found.lastgroup), raw.strip("`"), at - len(raw)))
                kind, raw = TokenType.IDENTIFIER, str(len(self._leaves) - 1)
            elif self._is_misplaced(kind, before, text[at:]):
                raise NotReadError(text[start:].strip())
            yield Token(kind, raw, start=found.start(str(found.lastgroup)), end=at - 1)
            before = kind

    def _is_misplaced(self, kind: TokenType, before: TokenType, rest: str) -> bool:
        """What sqlglot takes all the same, and then says something else, or nothing, of it."""
        if kind == TokenType.L_PAREN and before == TokenType.IDENTIFIER and self._leaves[-1].kind == "name":
            raise FunctionCallError(self._leaves[-1].text)
        if before not in _ENDS_A_VALUE:
            return kind == TokenType.PLUS
        return kind == TokenType.NOT and _NEGATED.match(rest) is None

    def _refused(self, tree: Any) -> NotReadError:
        """From its first column, text or number on."""
        found = [
            leaf.start for each in tree.find_all(exp.Identifier) if (leaf := self._leaf(each)) is not None
        ]
        return NotReadError(self._text[min(found) :] if found else self._text)

    def _leaf(self, tree: Any) -> _Leaf | None:
        """None of a word of the language that sqlglot takes as a name."""
        return self._leaves[int(tree.name)] if tree.name.isdecimal() else None

    def _node(self, tree: Any, least: int) -> SyntaxNode:
        """`least` is how tightly it has to bind."""
        kind = type(tree)
        if {name for name, value in tree.args.items() if value} - _HARMLESS:
            raise self._refused(tree)
        if kind in _BINARY:
            return self._binary(tree, least)
        if kind in (exp.Not, exp.In, exp.Between):
            return self._of_words(tree, least)
        if kind is exp.Paren:
            self._write("(")
            inside = self._node(tree.this, _CONDITION)
            self._write(")")
            return inside
        if kind is exp.Neg:
            self._write("-")
            return SyntaxNode("negative", (self._node(tree.this, _FACTOR),))
        if kind is exp.Column and isinstance(tree.this, exp.Identifier) and (leaf := self._leaf(tree.this)):
            self._write(tree.this.name)
            return SyntaxNode(leaf.kind, text=leaf.text)
        if kind in (exp.Null, exp.Boolean):
            operation = "NULL" if kind is exp.Null else "TRUE" if tree.this else "FALSE"
            self._write(operation)
            return SyntaxNode(operation)
        raise self._refused(tree)

    def _binary(self, tree: Any, least: int) -> SyntaxNode:
        operation, binds, right = _BINARY[type(tree)]
        if binds < least:
            raise self._refused(tree)
        # Long chains are as long as a list, not as deep.
        sides = list(tree.flatten(unnest=False)) if operation in ("AND", "OR") else [tree.left, tree.right]
        nodes = [self._node(sides[0], right if binds == _COMPARED else binds)]
        for side in sides[1:]:
            self._write(operation)
            nodes.append(self._node(side, right))
        if operation == "IS":
            if type(tree.right) is not exp.Null:
                raise self._refused(tree)
            return SyntaxNode("IS NULL", (nodes[0],))
        found = SyntaxNode(operation, tuple(nodes))
        if tree.args.get("negate"):  # NOT LIKE
            self._write("NOT")
            return SyntaxNode("NOT", (found,))
        return found

    def _of_words(self, tree: Any, least: int) -> SyntaxNode:
        if least > (_NOT if isinstance(tree, exp.Not) else _COMPARED):
            raise self._refused(tree)
        if isinstance(tree, exp.Not):
            self._write("NOT")
            return SyntaxNode("NOT", (self._node(tree.this, _NOT),))
        if isinstance(tree, exp.Between):
            operation, others = "BETWEEN", [tree.args["low"], tree.args["high"]]
            between = ["BETWEEN", "AND"]
        else:
            operation, others = "IN", tree.expressions
            between = ["IN", *[","] * (len(others) - 1)]
        if not others:
            raise self._refused(tree)
        nodes = [self._node(tree.this, _SUM)]
        for word, side in zip(between, others, strict=True):
            self._write(word)
            if word == "IN":
                self._write("(")
            nodes.append(self._node(side, _SUM))
        if operation == "IN":
            self._write(")")
        return SyntaxNode(operation, tuple(nodes))

    def _write(self, token: str) -> None:
        self._written.append(token)

    def _is_all(self, tokens: list[Token]) -> bool:
        """Whether the tree has every token at its place; `a NOT IN (b)` is one that says `NOT a IN (b)`."""
        given = [_SYNONYMS.get(token.text, token.text.upper()) for token in tokens]
        return given.count("NOT") == self._written.count("NOT") and [
            token for token in given if token != "NOT"
        ] == [token for token in self._written if token != "NOT"]
