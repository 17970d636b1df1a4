"""Convert plain-text equations from the recorder, such as "A = softmax(S / √d_k + M)", to MathML."""

import re
from html import escape


FUNCTIONS = {"softmax", "Concat", "LayerNorm", "Sublayer", "sin", "cos", "max", "relu", "gelu", "swish"}
SYMBOLS = {"pos", "head", "logits", "t", "i", "h"}  # lower-case symbols; other lower-case names are words
TOKEN = re.compile(r"\s*(√|[^\W\d_]+(?:_(?:\w+))?ᵀ?|\d+(?:\.\d+)?i?|\.\.\.|\S)")


def mathml(equation: str) -> str:
    """Return a `<math>` element. Words become text, `a / b` becomes a fraction, and `x_y` a subscript.

    Fractions are typeset in display style. "/" stays in exponents, where a fraction would be too small to read.
    """
    parts = Parts(TOKEN.findall(equation))
    return f'<math displaystyle="true">{parts.row("")}</math>'


class Parts:
    """A left-to-right parser that consumes the tokens of an equation."""

    def __init__(self, tokens: list[str]):
        self.tokens = tokens
        self.in_exponent = False

    def row(self, end: str) -> str:
        """Parse up to and including the token `end`, and return an `<mrow>`."""
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
        """Add an exponent to `base` if one follows. Powers bind more tightly than fractions."""
        if self.tokens[:1] != ["^"]:
            return base
        self.tokens.pop(0)
        self.in_exponent = True
        exponent = self.atom()
        self.in_exponent = False
        return f"<msup>{base}{exponent}</msup>"

    def atom(self) -> str:
        """Parse the operand of a fraction, root or power: a symbol, or an expression without its parentheses."""
        token = self.tokens.pop(0)
        return self.row(")") if token == "(" else self.element(token)

    def element(self, token: str) -> str:
        """Return a token as a MathML element, together with its operand if it has one."""
        if token == "√":  # without a math font, Chromium renders <msqrt> without the root sign
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
        """Return the element for a name: a symbol with its subscript, a function, or a word."""
        transposed = token.endswith("ᵀ")
        base, _, subscript = token.removesuffix("ᵀ").partition("_")
        if not subscript and base.islower() and base not in FUNCTIONS | SYMBOLS:
            return f"<mtext>&nbsp;{base}&nbsp;</mtext>"
        symbol = f"<mi>{base}</mi>"
        if subscript:
            kind = "mn" if subscript.isdigit() else "mi"
            symbol = f"<msub>{symbol}<{kind}>{subscript}</{kind}></msub>"
        return f"<msup>{symbol}<mo>⊤</mo></msup>" if transposed else symbol
