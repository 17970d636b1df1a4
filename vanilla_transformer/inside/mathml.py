"""Equations of the recorder, which are plain text such as "A = softmax(S / √d_k + M)", as MathML for web pages."""

import re
from html import escape


FUNCTIONS = {"softmax", "Concat", "LayerNorm", "Sublayer", "sin", "cos", "max", "relu", "gelu", "swish"}
SYMBOLS = {"pos", "head", "logits", "t", "i", "h"}  # lower-case names that are no words of a sentence
TOKEN = re.compile(r"\s*(√|[^\W\d_]+(?:_(?:\w+))?ᵀ?|\d+(?:\.\d+)?i?|\.\.\.|\S)")


def mathml(equation: str) -> str:
    """A `<math>` element; words between symbols become text, `a / b` a fraction, `x_y` a subscript.

    Fractions are as large as in an equation on a line of its own, and exponents have none, which could not be read.
    """
    parts = Parts(TOKEN.findall(equation))
    return f'<math displaystyle="true">{parts.row("")}</math>'


class Parts:
    """The tokens of an equation, read from left to right."""

    def __init__(self, tokens: list[str]):
        self.tokens = tokens
        self.in_exponent = False

    def row(self, end: str) -> str:
        """All up to the token `end`, which is taken away too."""
        made: list[str] = []
        while self.tokens:
            token = self.tokens.pop(0)
            if token == end:
                break
            if token == "/" and made and not self.in_exponent:
                made.append(f"<mfrac>{made.pop()}{self.power(self.atom())}</mfrac>")
            else:
                made.append(self.power(self.element(token)))
        return "<mrow>" + "".join(made) + "</mrow>"

    def power(self, base: str) -> str:
        """The base with its exponent, if one follows: it binds before a fraction does."""
        if self.tokens[:1] != ["^"]:
            return base
        self.tokens.pop(0)
        self.in_exponent = True
        exponent = self.atom()
        self.in_exponent = False
        return f"<msup>{base}{exponent}</msup>"

    def atom(self) -> str:
        """What a fraction, a root or a power takes: a symbol, or all between brackets, which it makes needless."""
        token = self.tokens.pop(0)
        return self.row(")") if token == "(" else self.element(token)

    def element(self, token: str) -> str:
        """A token with what belongs to it."""
        if token == "√":  # no <msqrt>: where there is no mathematical font, Chromium draws it without its sign
            return f"<mrow><mo>√</mo>{self.atom()}</mrow>"
        if token == "(":
            return f"<mrow><mo>(</mo>{self.row(')')}<mo>)</mo></mrow>"
        if token[0].isdigit():
            number, letter = (token[:-1], "<mi>i</mi>") if token.endswith("i") else (token, "")
            return f"<mrow><mn>{number}</mn>{letter}</mrow>" if letter else f"<mn>{number}</mn>"
        if token[0].isalpha():
            return self.name(token)
        return f"<mo>{escape(token)}</mo>"

    @staticmethod
    def name(token: str) -> str:
        """A symbol with its subscript, a function, or a word."""
        transposed = token.endswith("ᵀ")
        base, _, subscript = token.removesuffix("ᵀ").partition("_")
        if not subscript and base.islower() and base not in FUNCTIONS | SYMBOLS:
            return f"<mtext>&nbsp;{base}&nbsp;</mtext>"
        symbol = f"<mi>{base}</mi>"
        if subscript:
            kind = "mn" if subscript.isdigit() else "mi"
            symbol = f"<msub>{symbol}<{kind}>{subscript}</{kind}></msub>"
        return f"<msup>{symbol}<mo>⊤</mo></msup>" if transposed else symbol
