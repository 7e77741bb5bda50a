"""The caller's credentials: an API key, a session token, an instance principal or a resource principal.

They are looked up as the `oci` command line does. Nothing is written, no user is asked, and no key or token appears
in a message.
"""

import configparser
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import oci
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

from inventories.errors import InvalidInput
from inventories.text import did_you_mean
from inventories.threads import within
from provision.errors import BadCredentials, UnknownProfile
from provision.ini_files import no_ini
from provision.records import Target

PRINCIPAL_S = 8.0
KINDS = ("api_key", "security_token", "instance_principal", "resource_principal")

_OVERRIDES = {
    "user": "OCI_CLI_USER",
    "fingerprint": "OCI_CLI_FINGERPRINT",
    "key_file": "OCI_CLI_KEY_FILE",
    "key_content": "OCI_CLI_KEY_CONTENT",
    "pass_phrase": "OCI_CLI_PASSPHRASE",
    "tenancy": "OCI_CLI_TENANCY",
    "security_token_file": "OCI_CLI_SECURITY_TOKEN_FILE",
}
"""Entry of the configuration file → the variable that replaces it, also without a file."""

FINGERPRINT = "A fingerprint has 16 pairs of digits and letters, `12:34:…:ef`, as the console shows it."
_REGION_VARIABLES = ("OCI_CLI_REGION", "OCI_REGION")
_COMPARTMENT_VARIABLES = ("OCI_COMPARTMENT", "OCI_CLI_COMPARTMENT_ID", "OCI_COMPARTMENT_ID")


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """The caller, with region and compartment."""

    kind: str
    profile: str | None
    """Profile of the configuration file. `None`: a principal."""
    tenancy: str
    region: str
    compartment: str
    config: Mapping[str, Any]
    """Configuration of the SDK's clients, without the signer."""
    config_file: Path
    token_file: Path | None = None

    def signer(self) -> Any:
        """Return a new signer, from the present files. Raises BadCredentials."""
        try:
            signer = _SIGNERS[self.kind](self.config)
        except _SIGNER_ERRORS as error:
            raise self.refused(error) from error
        if not isinstance(getattr(signer, "private_key", None), RSAPrivateKey | None):
            raise self.refused(ValueError("the key is no RSA key, and OCI takes no other"))
        return signer

    def refused(self, error: BaseException) -> BadCredentials:
        """Return the error for credentials that the SDK can't use."""
        return BadCredentials(
            f"The credentials of {self.source} can't be used: {_sentence(error)} {self.advice}"
        )

    @property
    def source(self) -> str:
        """The source of the credentials, in words."""
        if self.profile is None:
            return f"the {self.kind.replace('_', ' ')}"
        return f"profile '{self.profile}' in '{self.config_file}'"

    @property
    def advice(self) -> str:
        """Advice on refused credentials."""
        if self.kind == "security_token":
            return (
                "Its session may have ended: run `oci session authenticate` with `--profile-name "
                f"{self.profile} --region {self.region}`, or `oci session refresh --profile {self.profile}`."
            )
        if self.kind == "api_key":
            return (
                "Check user, tenancy, fingerprint and key_file there, that the key is listed in the console "
                "under the user's API keys, and that this computer's clock is right."
            )
        return "Check that this runs on OCI, in a dynamic group that a policy gives access."


def find(target: Target, environ: Mapping[str, str] | None = None) -> Credentials:
    """Return the credentials for a target. Raises BadCredentials, which names their source."""
    env = os.environ if environ is None else environ
    file = Path(
        env.get("OCI_CLI_CONFIG_FILE") or env.get("OCI_CONFIG_FILE") or oci.config.DEFAULT_LOCATION
    ).expanduser()
    kind = env.get("GPUCTL_OCI_AUTH") or env.get("OCI_CLI_AUTH") or ""
    if kind and kind not in KINDS:
        raise InvalidInput(
            f"OCI_CLI_AUTH or GPUCTL_OCI_AUTH is '{kind}', which gpuctl does not know. Set it to "
            f"{', '.join(KINDS[:-1])} or {KINDS[-1]}, or unset it."
        )
    if kind in ("instance_principal", "resource_principal"):
        return _principal(kind, target, env, file)
    profile = target.profile or env.get("OCI_CLI_PROFILE") or oci.config.DEFAULT_PROFILE
    config = _read(file, profile, env, named=target.profile is not None)
    token_file = config.get("security_token_file")
    kind = kind or ("security_token" if token_file else "api_key")
    if kind == "security_token" and not token_file:
        raise BadCredentials(
            f"Profile '{profile}' in '{file}' has no security_token_file. Make one with `oci session "
            "authenticate`, or set OCI_CLI_AUTH to api_key."
        )
    region = _region(target, env) or _full_region(config.get("region"))
    tenancy = config.get("tenancy")
    if not region or not tenancy:
        missing = "region" if tenancy else "tenancy"
        raise BadCredentials(f"Profile '{profile}' in '{file}' has no {missing}. Add it there.")
    return Credentials(
        kind=kind,
        profile=profile,
        tenancy=tenancy,
        region=region,
        compartment=_compartment(target, env) or tenancy,
        config=config | {"region": region},
        config_file=file,
        token_file=Path(token_file).expanduser() if kind == "security_token" and token_file else None,
    )


def configured(environ: Mapping[str, str] | None = None) -> bool:
    """Return whether this computer has a setting for OCI, even a wrong one: a file, or a variable."""
    env = os.environ if environ is None else environ
    named = ("OCI_CLI_CONFIG_FILE", "OCI_CONFIG_FILE", "OCI_CLI_PROFILE", "OCI_CLI_AUTH", "GPUCTL_OCI_AUTH")
    if any(env.get(variable) for variable in (*named, *_OVERRIDES.values())):
        return True
    return Path(oci.config.DEFAULT_LOCATION).expanduser().exists()


def _principal(kind: str, target: Target, env: Mapping[str, str], file: Path) -> Credentials:
    try:
        signer = within(PRINCIPAL_S, lambda: _SIGNERS[kind]({}), what="OCI's service for it did not answer")
    except _SIGNER_ERRORS as error:
        raise BadCredentials(
            f"There is no {kind.replace('_', ' ')} here: {_sentence(error)} OCI_CLI_AUTH or GPUCTL_OCI_AUTH "
            "asks for one; unset it where gpuctl does not run on OCI."
        ) from error
    region = _region(target, env) or str(signer.region)
    return Credentials(
        kind=kind,
        profile=None,
        tenancy=signer.tenancy_id,
        region=region,
        compartment=_compartment(target, env) or signer.tenancy_id,
        config={"region": region, "tenancy": signer.tenancy_id},
        config_file=file,
    )


def _read(file: Path, profile: str, env: Mapping[str, str], *, named: bool) -> dict[str, Any]:
    """Return the profile's configuration. `named`: the user named the profile."""
    kind = UnknownProfile if named else BadCredentials
    overrides = {key: env[variable] for key, variable in _OVERRIDES.items() if env.get(variable)}
    try:
        config: dict[str, Any] = oci.config.from_file(str(file), profile)
    except oci.exceptions.ConfigFileNotFound as error:
        if not {"user", "fingerprint", "tenancy"} <= set(overrides):
            raise kind(
                f"There is no OCI configuration file '{file}'. Make one with `oci setup config`, or name "
                "yours in OCI_CLI_CONFIG_FILE."
            ) from error
        config = dict(oci.config.DEFAULT_CONFIG)
    except oci.exceptions.ProfileNotFound as error:
        profiles = configparser.ConfigParser(interpolation=None)
        profiles.read(file)
        near = did_you_mean(profile, [profiles.default_section, *profiles.sections()])
        raise kind(
            f"There is no profile '{profile}' in '{file}'{near or '.'} Name another with --profile or "
            "OCI_CLI_PROFILE."
        ) from error
    except (oci.exceptions.ClientError, configparser.Error, ValueError, OSError) as error:
        raise BadCredentials(f"'{file}' can't be used: {_sentence(error)}") from error
    return config | overrides


def _region(target: Target, env: Mapping[str, str]) -> str | None:
    named = target.region or next((env[name] for name in _REGION_VARIABLES if env.get(name)), None)
    return _full_region(named)


def _full_region(name: str | None) -> str | None:
    """Return `eu-frankfurt-1` for `fra`. Raises InvalidInput for a region that the SDK does not know."""
    if not name:
        return None
    region: str = oci.regions.get_region_from_short_name(name)
    if region not in oci.regions.REGIONS:
        near = did_you_mean(region, oci.regions.REGIONS) or "."
        raise InvalidInput(
            f"The OCI SDK {oci.__version__} knows no region '{name}'{near} "
            "A newer one may: `pip install --upgrade oci`."
        )
    return region


def _compartment(target: Target, env: Mapping[str, str]) -> str | None:
    named = target.compartment or next((env[name] for name in _COMPARTMENT_VARIABLES if env.get(name)), None)
    if named and not named.startswith(("ocid1.compartment.", "ocid1.tenancy.")):
        raise InvalidInput(
            f"'{named}' is no OCID of a compartment. Give what the console shows for it under Identity, "
            "Compartments: `ocid1.compartment.…`."
        )
    return named


def _api_key(config: Mapping[str, Any]) -> Any:
    oci.config.validate_config(dict(config))
    return oci.signer.Signer(
        tenancy=config["tenancy"],
        user=config["user"],
        fingerprint=config["fingerprint"],
        private_key_file_location=config.get("key_file"),
        pass_phrase=config.get("pass_phrase"),
        private_key_content=config.get("key_content"),
    )


def _security_token(config: Mapping[str, Any]) -> Any:
    token = Path(config["security_token_file"]).expanduser().read_text().strip()
    key = oci.signer.load_private_key_from_file(config["key_file"], config.get("pass_phrase"))
    return oci.auth.signers.SecurityTokenSigner(token, key)


_SIGNERS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "api_key": _api_key,
    "security_token": _security_token,
    "instance_principal": lambda _: oci.auth.signers.InstancePrincipalsSecurityTokenSigner(
        retry_strategy=oci.retry.NoneRetryStrategy()
    ),
    "resource_principal": lambda _: oci.auth.signers.get_resource_principals_signer(),
}

_SIGNER_ERRORS = (
    oci.exceptions.ClientError,
    oci.exceptions.ServiceError,
    OSError,  # files, and every error of `requests`
    ValueError,
    KeyError,
    TypeError,
    RuntimeError,
)


def _sentence(error: BaseException) -> str:
    if isinstance(error, oci.exceptions.InvalidConfig) and isinstance(error.errors, dict):
        wrong = ", ".join(f"{key} is {problem}" for key, problem in sorted(error.errors.items()))
        return f"{wrong}. {FINGERPRINT}" if error.errors.get("fingerprint") == "malformed" else f"{wrong}."
    if isinstance(error, oci.exceptions.MissingPrivateKeyPassphrase):
        return "the key needs a passphrase, and the profile has none. Add it there as pass_phrase."
    if isinstance(error, KeyError):
        return f"{error.args[0]} is missing."
    if isinstance(error, UnicodeDecodeError):
        return "it is no text."
    if isinstance(error, configparser.Error):
        return f"{no_ini(error)}."
    if isinstance(error, oci.exceptions.ServiceError):
        return f"{error.message}."
    if isinstance(error, OSError) and error.filename:
        return f"'{error.filename}': {error.strerror}."
    text = next((str(part) for part in error.args if isinstance(part, str)), str(error))
    return f"{text.strip().rstrip('.')}."
