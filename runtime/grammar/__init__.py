"""Texts that follow a grammar: a JSON schema, a regular expression, a Lark grammar, a choice.

value.py     Grammar, what a request asks for
compiler.py  GrammarCompiler: a grammar and a tokenizer become a state that knows which tokens
             may come next (through the llguidance library, the extra ``grammar``)
"""

from runtime.grammar.compiler import GrammarCompiler, GrammarState, check
from runtime.grammar.value import Grammar, GrammarKind

__all__ = ["Grammar", "GrammarCompiler", "GrammarKind", "GrammarState", "check"]
