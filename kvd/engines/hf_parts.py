"""What modules are besides their tensors: numbers and words they keep, and the code they run.

Code is told by name: who gives other code the same name is not found out.
"""

from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType
from typing import Any

# Types that can be named. Lists, dictionaries and tensors outside of parameters and buffers cannot.
PLAIN = frozenset({int, float, bool, str, FunctionType, BuiltinFunctionType})
# Names, training, and marks that torch and transformers set on the way. All else counts.
_LEFT_OUT = frozenset(
    {
        *("training", "gradient_checkpointing", "loss_type", "name_or_path", "_use_kernels"),
        *("_is_hf_initialized", "_is_full_backward_hook", "_output_capturing_hooks_installed"),
    }
)


def parts(model: Any) -> list[Any]:
    """Return what a keyspace says of the model's modules: their plain entries and their classes."""
    entries, kinds = {}, set()
    for module_name, module in model.named_modules():
        kinds.add(type(module))
        for field, value in vars(module).items():
            if type(value) in PLAIN and field not in _LEFT_OUT:
                entries[f"{module_name}.{field}"] = _name(value) if callable(value) else value
    return [entries, sorted(_code(kind) for kind in kinds)]


def _code(kind: type) -> list[str]:
    """Return the names of a class, of its forward with what wraps it, and of what that calls."""
    said = [f"{kind.__module__}.{kind.__qualname__}"]
    for function in _wrapped(kind.forward):
        said.append(_name(function))
        known = getattr(function, "__globals__", {})
        names = function.__code__.co_names if hasattr(function, "__code__") else ()
        said += sorted(_name(known[name]) for name in names if callable(known.get(name)))
    return said


def _wrapped(function: Any) -> Iterator[Any]:
    while function is not None:
        yield function
        function = getattr(function, "__wrapped__", None)


def _name(function: Any) -> str:
    # A wrapper takes over the names of what it wraps, but not those of its code.
    code, known = getattr(function, "__code__", None), getattr(function, "__globals__", {})
    where = known.get("__name__") or getattr(function, "__module__", "")
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{where}.{name}.{code.co_name if code else ''}"
