"""Convert equations of the recorder, such as "A = softmax(S / √d_k + M)", to MathML for web pages."""

import re
from html import escape


FUNCTIONS = {"softmax", "Concat", "LayerNorm", "Sublayer", "sin", "cos", "max", "relu", "gelu", "swish"}
SYMBOLS = {"pos", "head", "logits", "t", "i", "h"}  # names in lower case that are not words
TOKEN = re.compile(r"\s*(√|[^\W\d_]+(?:_(?:\w+))?ᵀ?|\d+(?:\.\d+)?i?|\.\.\.|\S)")


def mathml(equation: str) -> str:
    """Return a `<math>` element. Words become text, `a / b` a fraction, `x_y` a subscript.

    Fractions have display size. An exponent keeps "/", since a fraction there would be too small to read.
    """
    parts = Parts(TOKEN.findall(equation))
    return f'<math displaystyle="true">{parts.row("")}</math>'


class Parts:
    """The remaining tokens of an equation, parsed from left to right."""

    def __init__(self, tokens: list[str]):
        self.tokens = tokens
        self.in_exponent = False

    def row(self, end: str) -> str:
        """Parse up to and including the token `end`."""
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
        """Add the exponent to `base`, if one follows; it binds more tightly than a fraction."""
        if self.tokens[:1] != ["^"]:
            return base
        self.tokens.pop(0)
        self.in_exponent = True
        exponent = self.atom()
        self.in_exponent = False
        return f"<msup>{base}{exponent}</msup>"

    def atom(self) -> str:
        """Parse an operand of a fraction, root or power: a symbol, or the content of brackets without them."""
        token = self.tokens.pop(0)
        return self.row(")") if token == "(" else self.element(token)

    def element(self, token: str) -> str:
        """Return a token with its operand, as an element."""
        if token == "√":  # not <msqrt>: without a mathematical font, Chromium draws it without the sign
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
        """Return a symbol with its subscript, a function, or a word."""
        transposed = token.endswith("ᵀ")
        base, _, subscript = token.removesuffix("ᵀ").partition("_")
        if not subscript and base.islower() and base not in FUNCTIONS | SYMBOLS:
            return f"<mtext>&nbsp;{base}&nbsp;</mtext>"
        symbol = f"<mi>{base}</mi>"
        if subscript:
            kind = "mn" if subscript.isdigit() else "mi"
            symbol = f"<msub>{symbol}<{kind}>{subscript}</{kind}></msub>"
        return f"<msup>{symbol}<mo>⊤</mo></msup>" if transposed else symbol
