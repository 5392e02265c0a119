"""A config.json from the Hugging Face hub; needs the optional library: `pip install 'kvsim[hub]'`."""

from pathlib import Path

from kvsim.errors import ModelError


def fetch_config(repository: str) -> Path:
    """The config.json of "org/model" or "org/model@revision", downloaded or from the library's cache."""
    try:
        from huggingface_hub import hf_hub_download
    except ImportError as error:
        raise ModelError(
            f"hf:{repository}: fetching from the hub needs huggingface_hub; install it with: "
            f"pip install 'kvsim[hub]'"
        ) from error
    name, _, revision = repository.partition("@")
    if name.count("/") != 1 or not all(name.split("/")):
        raise ModelError(f"hf:{repository}: a hub repository must be written as hf:org/model")
    try:
        return Path(hf_hub_download(repo_id=name, filename="config.json", revision=revision or None))
    except Exception as error:  # the library raises its own, httpx's and requests' errors
        raise ModelError(f"hf:{repository}: config.json could not be fetched ({error})") from error
