"""The directive `public-names`: what a module exports, from its docstrings and signatures.

    ```{public-names} manyhands.codecs
    ```

explains everything in `__all__` of the module; names in the directive's body select some of them,
and the option `:module:` shows the docstring of the module alone.
Sphinx' own autodoc reads reStructuredText and shows nothing but "alias of" for a second name of a
class, and so `strategies.ssp` would have no signature.
"""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from docs.site_extensions.docstrings import as_markdown
from docs.site_extensions.public_names import explained_as, names_of, paths_of_name, public_names
from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from sphinx import addnodes
from sphinx.pycode import ModuleAnalyzer
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxDirective
from sphinx.util.inspect import stringify_signature
from sphinx.util.typing import ExtensionMetadata, stringify_annotation

if TYPE_CHECKING:
    from sphinx.application import Sphinx


@dataclass(frozen=True)
class Member:
    """A field, an attribute, a property or a method of a class."""

    kind: str
    name: str
    signature: str
    type: str
    value: str
    text: str


def signature_of(value: Any) -> str:
    """The signature as `help` has it, without the quotes of annotations that are text."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    if inspect.isclass(value):
        if issubclass(value, BaseException) and "__init__" not in vars(value):
            return ""
        signature = signature.replace(return_annotation=inspect.Signature.empty)
    return _as_text(signature)


def _as_text(signature: inspect.Signature) -> str:
    """A signature whose default values can be read, and are the same in every process."""
    text = stringify_signature(signature, unqualified_typehints=True)
    text = re.sub(r"<function [\w.<>]*<lambda> at 0x\w+>", "...", text)
    return re.sub(r"<(?:function|class|object) '?([\w.]+)(?:'| at 0x\w+)>", r"\1", text)


def docstring_of(value: object) -> str:
    """The docstring that `help` shows, without what Python writes for dataclasses."""
    text = inspect.getdoc(value) or ""
    generated = inspect.isclass(value) and text.startswith(f"{value.__name__}(")
    return "" if generated else text


def members_of(kind: type) -> list[Member]:
    """The documented public members of a class, fields first.

    Methods that a public base class has are explained there. Fields are those of all base classes,
    because they are the arguments of the class.
    """
    own = [base for base in kind.__mro__ if base.__module__.partition(".")[0] == "manyhands"]
    contract = {
        name
        for base in own[1:]
        if explained_as(base) and explained_as(base) != explained_as(kind)
        for name in dir(base)
    }
    found: dict[str, Member] = {}
    for base in reversed(own):
        found.update(_fields(kind, base, contract))
    for base in own:
        if base is kind or not explained_as(base):
            for name, value in vars(base).items():
                if not name.startswith("_") and name not in found and name not in contract:
                    member = _member(name, value)
                    if member is not None:
                        found[name] = member
    return list(found.values())


def _fields(kind: type, base: type, contract: set[str]) -> dict[str, Member]:
    """Attributes with a docstring below them, in the order of the source."""
    texts = ModuleAnalyzer.for_module(base.__module__).find_attr_docs()
    arguments = {*getattr(kind, "__struct_fields__", ())}
    if is_dataclass(kind):
        arguments |= {field.name for field in fields(kind) if field.init}
    defaults = dict(inspect.signature(kind).parameters) if arguments else {}
    found = {}
    for (owner, name), lines in texts.items():
        known = name in arguments or (base is kind and name not in contract)
        if owner != base.__qualname__ or name.startswith("_") or not known:
            continue
        annotation = base.__annotations__.get(name, inspect.Parameter.empty)
        default = defaults[name].default if name in defaults else inspect.Parameter.empty
        empty = inspect.Parameter.empty
        found[name] = Member(
            kind="attribute",
            name=name,
            signature="",
            type="" if annotation is empty else stringify_annotation(annotation, "smart"),
            value="" if default is empty or "<" in repr(default) else repr(default),
            text="\n".join(lines).strip(),
        )
    return found


def _member(name: str, value: object) -> Member | None:
    text = inspect.getdoc(value) if getattr(value, "__doc__", None) else None
    if not text:
        return None
    match value:
        case property() | cached_property():
            getter = value.fget if isinstance(value, property) else value.func
            annotation = inspect.signature(getter).return_annotation if getter else ""
            shown = stringify_annotation(annotation, "smart")
            return Member("property", name, "", shown.removeprefix("inspect._empty"), "", text)
        case staticmethod() | classmethod():
            kind = "staticmethod" if isinstance(value, staticmethod) else "classmethod"
            return Member(kind, name, _method_signature(value.__func__, kind), "", "", text)
        case _ if inspect.isfunction(value):
            return Member("method", name, _method_signature(value, "method"), "", "", text)
    return None


def _method_signature(value: Any, kind: str) -> str:
    signature = inspect.signature(value)
    if kind != "staticmethod":
        signature = signature.replace(parameters=[*signature.parameters.values()][1:])
    return _as_text(signature)


def reference(path: str) -> str:
    """What the reference says about a public name, as MyST Markdown."""
    public = public_names()[path]
    value = public.value
    home = explained_as(value)
    if home is not None and home != path:
        summary = as_markdown(docstring_of(value).split("\n\n")[0])
        body = f"{summary}\n\nThe same as {{py:obj}}`{home}`."
        return _directive(4, _kind(value), f"{public.name}{signature_of(value)}", body)
    if not callable(value) or _is_alias(value):
        return _data(public.module, public.name, value)
    body = as_markdown(docstring_of(value))
    if inspect.isclass(value):
        body += "".join(f"\n\n{_member_text(member)}" for member in members_of(value))
    return _directive(4, _kind(value), f"{public.name}{signature_of(value)}", body)


def _kind(value: object) -> str:
    if not inspect.isclass(value):
        return "py:function"
    return "py:exception" if issubclass(value, BaseException) else "py:class"


def _is_alias(value: object) -> bool:
    return not inspect.isclass(value) and not inspect.isroutine(value)


def _data(module: str, name: str, value: object) -> str:
    """A constant or an alias of types, with the docstring below it where it is assigned."""
    text = ""
    source = import_module(module)
    for at in (module, *_imported_from(source, name)):
        docs = ModuleAnalyzer.for_module(at).find_attr_docs()
        text = "\n".join(docs.get(("", name), [])).strip() or text
    shown = stringify_annotation(value, "smart") if _is_alias(value) and callable(value) else ""
    if isinstance(value, str | int | float):
        shown = repr(value)
    options = f":value: {json.dumps(shown.replace('~', ''))}\n\n" if shown else ""
    return _directive(4, "py:data", name, options + as_markdown(text))


def _imported_from(module: Any, name: str) -> list[str]:
    """The modules that a name was imported from, one after the other."""
    found = []
    while True:
        pattern = rf"^ *from ([\w.]+) import (?:\([^)]*?\b|[^(\n]*?\b){name}\b"
        origin = re.search(pattern, inspect.getsource(module), re.MULTILINE)
        if not origin or origin[1] in found:
            return found
        found.append(origin[1])
        module = import_module(origin[1])


def _member_text(member: Member) -> str:
    options = [":no-contents-entry:"]
    options += [f":type: {json.dumps(member.type.replace('~', ''), ensure_ascii=False)}"] * bool(
        member.type
    )
    options += [f":value: {json.dumps(member.value, ensure_ascii=False)}"] * bool(member.value)
    kind = "method" if member.kind in {"classmethod", "staticmethod"} else member.kind
    options += [f":{member.kind}:"] * (kind != member.kind)
    body = "\n".join(options) + "\n\n" + as_markdown(member.text)
    return _directive(3, f"py:{kind}", f"{member.name}{member.signature}", body)


def _directive(colons: int, kind: str, argument: str, body: str) -> str:
    fence = ":" * colons
    return f"{fence}{{{kind}}} {argument}\n{body}\n{fence}"


class PublicNames(SphinxDirective):
    """The directive `public-names`."""

    required_arguments = 1
    option_spec: ClassVar[dict[str, Any]] = {"module": directives.flag}
    has_content = True

    def run(self) -> list[nodes.Node]:
        """Parse the reference of every name, as if it stood in the page."""
        module = self.arguments[0]
        names = " ".join(self.content).split()
        blocks = [f"```{{py:currentmodule}} {module}\n```"]
        if "module" in self.options or not names:
            blocks = [f"```{{py:module}} {module}\n```"]
            blocks += [as_markdown(docstring_of(import_module(module)))]
            names = [] if "module" in self.options else names_of(module)
        blocks += [reference(f"{module}.{name}") for name in names]
        text = "\n\n".join(blocks)
        found = nodes.Element()
        self.state.nested_parse(StringList(text.splitlines(), f"<{module}>"), 0, found)
        return found.children


class LinkTypes(SphinxPostTransform):
    """Names in signatures and fields lead to the public names; those of other packages are text.

    A name that a page writes in full, as in {py:obj}`manyhands.train`, is left to Sphinx, which
    warns if there is none.
    """

    default_priority = 5

    def run(self, **_: Any) -> None:
        """Before Sphinx looks for them, which takes longer and finds less."""
        known = self.env.domains["py"].objects
        for node in list(self.document.findall(addnodes.pending_xref)):
            target = str(node["reftarget"])
            in_full = target.startswith("manyhands.") and node["reftype"] == "obj"
            if node.get("refdomain") != "py" or in_full:
                continue
            beside = f"{node.get('py:module')}.{target}"
            paths = [beside, *paths_of_name(target.rpartition(".")[2])]
            path = next((path for path in paths if path in known), None)
            if path is None:
                node.replace_self(node.children)
                continue
            uri = self.app.builder.get_relative_uri(self.env.docname, known[path].docname)
            link = f"{uri}#{known[path].node_id}"
            node.replace_self(
                nodes.reference("", "", *node.children, internal=True, refuri=link, reftitle=path)
            )


def setup(app: Sphinx) -> ExtensionMetadata:
    """Add the directive and what its signatures refer to."""
    app.add_directive("public-names", PublicNames)
    app.add_post_transform(LinkTypes)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
