"""Optional packages, imported when they are needed: absent, broken, or there."""

from __future__ import annotations

import importlib
from typing import Any

from engines.errors import BackendError, MissingDependencyError


def require(
    module: str, distribution: str, extra: str, purpose: str, names: tuple[str, ...] = ()
) -> Any:
    """The module, from the package ``distribution`` that the ssd-trt ``extra`` brings.

    Raises MissingDependencyError when it is not installed, BackendError when it is but importing it
    fails, in whatever way (a library it needs is missing, its files are damaged), or it lacks one
    of ``names``.
    """
    try:
        found = importlib.import_module(module)
        for name in names:
            getattr(found, name)
        return found
    except ModuleNotFoundError as error:
        if error.name == module.partition(".")[0]:
            raise MissingDependencyError(distribution, extra, purpose) from None
        raise unloadable(distribution, extra, error) from None
    except (Exception, SystemExit) as error:
        raise unloadable(distribution, extra, error) from None


def unloadable(distribution: str, extra: str, error: BaseException) -> BackendError:
    """The error for a package that is there and of no use."""
    return BackendError(
        f"{distribution} is installed but cannot be loaded ({type(error).__name__}: {error}); "
        f"reinstall it: pip install --force-reinstall 'ssd-trt[{extra}]'"
    )
