"""From a lowered TVM device function to a `Kernel`. What it does not know is refused by name, never passed over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from driftgate.outcome import UsageError
from driftgate.races.kernel import (
    GLOBAL,
    LOCAL,
    SHARED,
    Barrier,
    Bind,
    Broadcast,
    Buffer,
    Call,
    Cast,
    Choice,
    Const,
    Expr,
    For,
    If,
    Kernel,
    Let,
    Load,
    Op,
    Ramp,
    Seq,
    Shuffle,
    Site,
    Stmt,
    Storage,
    Store,
    Var,
    While,
    bytes_of,
    lanes_of,
)

_BINARY = {
    "Add": "+", "Sub": "-", "Mul": "*", "Div": "/", "FloorDiv": "//", "FloorMod": "%", "Mod": "trunc%",
    "Max": "max", "Min": "min", "EQ": "==", "NE": "!=", "LT": "<", "LE": "<=", "GT": ">", "GE": ">=",
    "And": "and", "Or": "or", "BitwiseAnd": "&", "BitwiseOr": "|", "BitwiseXor": "^", "LShift": "<<", "RShift": ">>",
}  # fmt: skip
_BITWISE = {
    "bitwise_and": "&",
    "bitwise_or": "|",
    "bitwise_xor": "^",
    "shift_left": "<<",
    "shift_right": ">>",
}
_MATH = ("exp2", "exp", "log2", "log", "pow", "cos", "sin", "sqrt", "rsqrt", "tanh", "sigmoid", "fabs", "floor", "ceil")
_SHUFFLES = {"tvm_warp_shuffle": False, "tvm_warp_shuffle_down": True}
_AXES = ("x", "y", "z")
TEXT = 160
"""Characters of a statement that reports show."""


def parse(name: str, function: Any) -> Kernel:
    """The kernel of ``function``, a device PrimFunc before finalization. UsageError names an unknown node."""
    return _Parser(name, function).kernel()


class _Parser:
    def __init__(self, name: str, function: Any) -> None:
        self.name, self.function = name, function
        self.vars: dict[Any, Var] = {}
        self.buffers: dict[Any, Buffer] = {}
        self.storages: dict[Any, Storage] = {}
        self.sites: list[tuple[str, Buffer | None, Any]] = []
        self.grid: list[tuple[str, Var, Expr]] = []
        self.block: list[tuple[str, Var, int]] = []
        self.barriers = 0
        self.at: Any = None

    def kernel(self) -> Kernel:
        pointers, scalars = [], []
        for parameter in self.function.params:
            if type(parameter.ty).__name__ == "PointerType":
                storage = Storage(parameter.name.removesuffix("_ptr"), GLOBAL, None)
                self.storages[parameter] = storage
                pointers.append(parameter)
            else:
                scalars.append(self.var(parameter))
        body = self.stmt(self.function.body)
        declared = {b.storage: b for b in reversed(self.buffers.values())}
        unused = [Buffer(self.storages[p].name, str(p.ty.element_type), self.storages[p]) for p in pointers]
        script, sites = self.located()
        return Kernel(
            self.name,
            tuple((var, extent) for _, var, extent in sorted(self.grid, key=lambda axis: axis[0])),
            tuple((var, extent) for _, var, extent in sorted(self.block, key=lambda axis: axis[0])),
            tuple(declared.get(self.storages[p], other) for p, other in zip(pointers, unused, strict=True)),
            tuple(scalars),
            tuple(self.buffers.values()),
            body,
            tuple(sites),
            script,
            {number: node for number, (_, _, node) in enumerate(self.sites)},
        )

    def unsupported(self, what: str) -> UsageError:
        return UsageError(f"kernel {self.name}: {what} is not supported by the race detector")

    # Statements

    def stmt(self, node: Any) -> Stmt:
        handler: Callable[[Any], Stmt] | None = getattr(self, f"_{type(node).__name__}", None)
        if handler is None:
            raise self.unsupported(f"statement {type(node).__name__}")
        return handler(node)

    def _SeqStmt(self, node: Any) -> Stmt:
        return Seq(tuple(self.stmt(part) for part in node.seq))

    def _DeclBuffer(self, node: Any) -> Stmt:
        buffer = node.buffer
        if str(buffer.elem_offset) not in ("0", "T.int64(0)") and buffer.elem_offset is not None:
            raise self.unsupported(f"buffer {buffer.name} at an offset")
        data = node.data
        if type(data).__name__ == "Call":  # buffer_data(other): the same memory under another dtype or shape
            data = data.args[0]
        storage = self.storages[data] if data in self.storages else self.buffers[data].storage
        self.buffers[buffer] = Buffer(buffer.name, str(buffer.dtype), storage)
        return Seq(())

    def _AllocBuffer(self, node: Any) -> Stmt:
        buffer, scope = node.buffer, node.buffer.scope()
        if scope not in (LOCAL, SHARED, "shared.dyn"):
            raise self.unsupported(f"memory scope {scope!r} of buffer {buffer.name}")
        size = 1
        for extent in buffer.shape:
            if type(extent).__name__ != "IntImm":
                raise self.unsupported(f"buffer {buffer.name} of a size that is no constant")
            size *= int(extent.value)
        dtype = str(buffer.dtype)
        scope = LOCAL if scope == LOCAL else SHARED
        storage = Storage(buffer.name, scope, size * lanes_of(dtype) * bytes_of(dtype))
        self.buffers[buffer] = Buffer(buffer.name, dtype, storage)
        return Seq(())

    def _AttrStmt(self, node: Any) -> Stmt:
        if node.attr_key == "thread_extent":
            self.axis(node.node.thread_tag, node.node.var, node.value)
        elif node.attr_key not in ("reduce_scope", "storage_alignment"):
            raise self.unsupported(f"attribute {node.attr_key}")
        return self.stmt(node.body)

    def axis(self, tag: str, var: Any, extent: Any) -> None:
        kind, _, axis = tag.partition(".")
        if kind == "blockIdx" and axis in _AXES:
            self.grid.append((axis, self.var(var), self.expr(extent)))
        elif kind == "threadIdx" and axis in _AXES:
            if type(extent).__name__ != "IntImm":
                raise self.unsupported(f"{tag} of an extent that is no constant")
            self.block.append((axis, self.var(var), int(extent.value)))
        else:
            raise self.unsupported(f"thread axis {tag}")

    def _Bind(self, node: Any) -> Stmt:
        value = self.expr(node.value)
        return Bind(self.var(node.var), value)

    def _BufferStore(self, node: Any) -> Stmt:
        self.at = node
        index, value = self.expr(self.index(node)), self.expr(node.value)
        buffer = self.buffers[node.buffer]
        return Store(buffer, index, value, self.site("store", buffer, node))

    def _For(self, node: Any) -> Stmt:
        self.at = node
        if int(node.kind) not in (0, 3) or (node.step is not None and int(getattr(node.step, "value", 1)) != 1):
            raise self.unsupported(f"loop of kind {node.kind}")
        start, extent = self.expr(node.min), self.expr(node.extent)
        site = self.site("loop", None, node)
        return For(self.var(node.loop_var), start, extent, self.stmt(node.body), site)

    def _While(self, node: Any) -> Stmt:
        self.at = node
        condition = self.expr(node.condition)
        site = self.site("loop", None, node)
        return While(condition, self.stmt(node.body), site)

    def _IfThenElse(self, node: Any) -> Stmt:
        self.at = node
        condition = self.expr(node.condition)
        site = self.site("branch", None, node)
        then = self.stmt(node.then_case)
        return If(condition, then, None if node.else_case is None else self.stmt(node.else_case), site)

    def _Evaluate(self, node: Any) -> Stmt:
        call = node.value
        if type(call).__name__ == "IntImm":
            return Seq(())
        name = _op_name(call)
        if name != "tvm_storage_sync":
            raise self.unsupported(f"call {name}")
        scope = str(call.args[0].value)
        if scope not in (SHARED, "shared.dyn", GLOBAL):
            raise self.unsupported(f"barrier of scope {scope!r}")
        self.barriers += 1
        scope = GLOBAL if scope == GLOBAL else SHARED
        return Barrier(scope, self.barriers - 1, self.site("barrier", None, node))

    # Expressions

    def expr(self, node: Any) -> Expr:
        kind, dtype = type(node).__name__, str(node.ty)
        if kind in _BINARY:
            return Op(dtype, _BINARY[kind], (self.expr(node.a), self.expr(node.b)))
        handler: Callable[[Any, str], Expr] | None = getattr(self, f"_{kind}", None)
        if handler is None:
            raise self.unsupported(f"expression {kind}")
        return handler(node, dtype)

    def _IntImm(self, node: Any, dtype: str) -> Expr:
        return Const(dtype, int(node.value))

    def _FloatImm(self, node: Any, dtype: str) -> Expr:
        return Const(dtype, float(node.value))

    def _Var(self, node: Any, dtype: str) -> Expr:
        return self.var(node)

    def _Not(self, node: Any, dtype: str) -> Expr:
        return Op(dtype, "not", (self.expr(node.a),))

    def _Cast(self, node: Any, dtype: str) -> Expr:
        return Cast(dtype, self.expr(node.value))

    def _Select(self, node: Any, dtype: str) -> Expr:
        return Choice(dtype, self.expr(node.condition), self.expr(node.true_value), self.expr(node.false_value))

    def _Let(self, node: Any, dtype: str) -> Expr:
        value = self.expr(node.value)
        return Let(dtype, self.var(node.var), value, self.expr(node.body))

    def _Ramp(self, node: Any, dtype: str) -> Expr:
        return Ramp(dtype, self.expr(node.base), self.expr(node.stride), lanes_of(dtype))

    def _Broadcast(self, node: Any, dtype: str) -> Expr:
        return Broadcast(dtype, self.expr(node.value), lanes_of(dtype))

    def _TensorLoad(self, node: Any, dtype: str) -> Expr:
        buffer = self.buffers[node.source]
        index = self.expr(self.index(node))
        return Load(dtype, buffer, index, self.site("load", buffer, self.at, node))

    def _Call(self, node: Any, dtype: str) -> Expr:
        name = _op_name(node)
        args = node.args
        if name == "if_then_else":
            return Choice(dtype, *(self.expr(arg) for arg in args))
        if name == "tvm_thread_invariant":
            return self.expr(args[0])
        if name == "tvm_warp_activemask":
            return Const(dtype, 0xFFFFFFFF if dtype == "uint32" else -1)
        if name == "reinterpret":
            return Cast(dtype, self.expr(args[0]), bits=True)
        if name in _SHUFFLES:
            width = args[3]
            return Shuffle(dtype, self.expr(args[1]), self.expr(args[2]), int(width.value), _SHUFFLES[name])
        if name in _BITWISE:
            return Op(dtype, _BITWISE[name], tuple(self.expr(arg) for arg in args))
        if name in _MATH:
            return Call(dtype, name, tuple(self.expr(arg) for arg in args))
        raise self.unsupported(f"call {name}")

    def index(self, node: Any) -> Any:
        if len(node.indices) != 1:
            raise self.unsupported("a buffer of several dimensions")
        return node.indices[0]

    def var(self, node: Any) -> Var:
        if node not in self.vars:
            names = {var.name for var in self.vars.values()}
            name, tries = node.name, 1
            while name in names:
                name, tries = f"{node.name}_{tries}", tries + 1
            self.vars[node] = Var(str(node.ty), name)
        return self.vars[node]

    # Sites

    def site(self, kind: str, buffer: Buffer | None, statement: Any, load: Any = None) -> int:
        self.sites.append((kind, buffer, (statement, load)))
        return len(self.sites) - 1

    def located(self) -> tuple[str, list[Site]]:
        """The script, and each site with its line in it and its place in the source."""
        script = self.function.script()
        leaves = {s: s for _, _, (s, _) in self.sites if type(s).__name__ in ("BufferStore", "Evaluate")}
        lines = _lines(self.function, list(leaves.values()))
        text = script.splitlines()
        sites = []
        for number, (kind, buffer, (statement, load)) in enumerate(self.sites):
            line = lines.get(statement) or _header(text, lines, statement)
            shown = text[line - 1].strip() if line else ""
            file, source_line = _source(load) or _source(statement) or (None, None)
            sites.append(Site(number, kind, buffer, shown[:TEXT], line, file, source_line))
        return script, sites


def _source(node: Any) -> tuple[str, int] | None:
    """File and line that TVM remembers for ``node``; None for what TVM put in itself."""
    span = getattr(node, "span", None)
    for part in getattr(span, "spans", [span]):
        if part is not None and part.line:
            return str(part.source_name.name), int(part.line)
    return None


def _header(text: list[str], lines: dict[Any, int], statement: Any) -> int:
    """Line of a loop's or branch's head: so many blocks above its first store or barrier as that lies deep in it."""
    found = _first_leaf(statement, lines)
    if found is None:
        return 0
    leaf, depth = found
    line = lines[leaf]
    for _ in range(depth):
        here = _indent(text[line - 1])
        line = next((n for n in range(line - 1, 0, -1) if _indent(text[n - 1]) < here), 1)
    return line


def _first_leaf(statement: Any, lines: dict[Any, int]) -> tuple[Any, int] | None:
    """The first statement in ``statement`` whose line is known, and how many blocks lie around it there."""
    if statement in lines:
        return statement, 0
    kind = type(statement).__name__
    if kind == "SeqStmt":
        return next((found for part in statement.seq if (found := _first_leaf(part, lines))), None)
    for part in (getattr(statement, name, None) for name in ("body", "then_case", "else_case")):
        if part is not None and (found := _first_leaf(part, lines)):
            # Loops right inside one another are printed as one.
            return found[0], found[1] + (kind != "For" or type(part).__name__ != "For")
    return None


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _op_name(call: Any) -> str:
    return str(getattr(call.op, "name", call.op)).rpartition(".")[2]


def _lines(function: Any, statements: list[Any]) -> dict[Any, int]:
    """Line of each statement in the function's script: TVM underlines one object at a time in the order it prints them.

    Statements print in program order, each on a line of its own, so the n-th underlined line is the n-th statement.
    """
    underlined = function.script(obj_to_underline=statements).splitlines()
    # TVM lists the access paths of what it underlines above the script.
    begins = next((n for n, text in enumerate(underlined) if text and not text.startswith("Access path:")), 0)
    underlined = underlined[begins:]
    found: list[int] = []
    line = 0
    for number, text in enumerate(underlined):
        marks = bool(text.strip()) and set(text.strip()) == {"^"}
        if not marks:
            line += 1
        elif number and not (underlined[number - 1].strip() and set(underlined[number - 1].strip()) == {"^"}):
            found.append(line)
    return dict(zip(statements, found, strict=False)) if len(found) == len(statements) else {}
