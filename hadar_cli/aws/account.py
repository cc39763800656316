"""The way to AWS: the only file that imports boto3, and where its errors become ours."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hadar_cli.core.model import AwsRequest
from hadar_cli.errors import InputError
from hadar_cli.nodes.wire import LinkLostError, NoMoreError, NotYetError, said

_PATIENCE_S = 20.0  # with one answer
_NEW_LOGIN_S = 10.0  # between looks whether somebody has logged in anew
# What may be there later: trying again helps.
_LATER = (
    *("InsufficientInstanceCapacity", "InsufficientHostCapacity", "InsufficientCapacityOnHost"),
    *("InsufficientReservedInstanceCapacity", "SpotMaxPriceTooLow", "IncorrectInstanceState"),
    *("MaxSpotInstanceCountExceeded", "IncorrectSpotRequestState", "RequestLimitExceeded"),
    *("Throttling", "Unavailable", "ServiceUnavailable", "InternalError", "InternalFailure"),
)
# Credentials that have run out: whoever logs in anew helps.
_LOGGED_OUT = (
    *("ExpiredToken", "ExpiredTokenException", "RequestExpired", "UnauthorizedSSOTokenError"),
    *("SSOTokenLoadError", "TokenRetrievalError", "CredentialRetrievalError", "NoCredentialsError"),
)
# A request that AWS will never grant as it stands, and what to do about it.
_FIXES = {
    "NoCredentialsError": "run `aws configure`, or set AWS_PROFILE or AWS_ACCESS_KEY_ID",
    "PartialCredentialsError": "run `aws configure`: a part of the credentials is missing",
    "NoRegionError": 'name a region: region = "us-east-1" in [aws], or --region us-east-1',
    "InvalidRegionError": "write a region like us-east-1",
    "ProfileNotFound": "`aws configure list-profiles` shows which there are",
    "EndpointConnectionError": "see whether the region is right and the network is up",
    "ConnectTimeoutError": "see whether the region is right and the network is up",
    "AuthFailure": "the credentials are not valid there: `aws sts get-caller-identity`",
    "InvalidClientTokenId": "the credentials are not valid: `aws sts get-caller-identity`",
    "ExpiredToken": "log in anew: `aws sso login`, or as you did before",
    "ExpiredTokenException": "log in anew: `aws sso login`, or as you did before",
    "UnauthorizedSSOTokenError": "log in anew: `aws sso login`",
    "SSOTokenLoadError": "log in: `aws sso login`",
    "TokenRetrievalError": "log in anew: `aws sso login`",
    "CredentialRetrievalError": "log in anew: `aws sso login`, or as you did before",
    "RequestExpired": "log in anew, or set this computer's clock",
    "UnauthorizedOperation": "the account lacks a right: docs/guide/aws.md has the policy",
    "AccessDenied": "the account lacks a right: docs/guide/aws.md has the policy",
    "OptInRequired": "the account may not use this region yet: enable it in the console",
    "VcpuLimitExceeded": "ask for more vCPUs of this family: Service Quotas, Amazon EC2",
    "InstanceLimitExceeded": "ask for more instances: Service Quotas, Amazon EC2",
    "InsufficientInstanceCapacity": "choose another type, region or time; on demand, not spot",
    "InvalidLaunchTemplateId.NotFound": "`aws ec2 describe-launch-templates` shows which exist",
    "InvalidLaunchTemplateId.Malformed": "`aws ec2 describe-launch-templates` shows which exist",
    "InvalidLaunchTemplateId.VersionNotFound": "mend version: $Default, $Latest or its number",
    "InvalidLaunchTemplateName.NotFoundException": "`aws ec2 describe-launch-templates` shows "
    "which exist in this region",
    "InvalidInstanceID.NotFound": "see `aws ec2 describe-instances`; is the region right?",
    "InvalidInstanceID.Malformed": "see `aws ec2 describe-instances`",
    "InvalidAMIID.NotFound": "the template's image is not there: is the region right?",
    "Unsupported": "this type is not to be had there: choose another type or region",
    "ParamValidationError": "mend the name or id in [[aws.instances]], as AWS writes it",
    "InvalidParameterValue": "mend the template, or what [[aws.instances]] changes of it",
}


class Account:
    """One account in one region, with a client for each service; asked from any thread."""

    def __init__(self, region: str | None, profile: str | None, config: str | None) -> None:
        self._region, self._profile, self._config = region, profile, config
        self._lock = threading.Lock()
        self._clients: dict[tuple[str, str | None], Any] = {}
        self._opened_at = 0.0

    @classmethod
    def of(cls, request: AwsRequest) -> Account:
        key = (request.region, request.profile, request.config)
        with _OPENING:
            return _ACCOUNTS.setdefault(key, cls(*key))

    @property
    def ec2(self) -> Any:
        return self.client("ec2")

    def client(self, service: str, region: str | None = None) -> Any:
        with self._lock:
            if (service, region) not in self._clients:
                self._clients[service, region] = self._make(service, region or self._region)
                self._opened_at = time.monotonic()
            return self._clients[service, region]

    def log_in(self) -> None:
        """Has the next question read the credentials anew: a client keeps those that it has."""
        with self._lock:
            if time.monotonic() > self._opened_at + _NEW_LOGIN_S:
                self._clients.clear()

    def _make(self, service: str, region: str | None) -> Any:
        boto3 = _boto3()
        import botocore.session  # type: ignore[import-untyped]
        from botocore.config import Config  # type: ignore[import-untyped]

        inner = botocore.session.Session()
        if self._config:
            path = Path(self._config).expanduser()
            if not path.is_file():
                raise InputError(f"there is no {path}", field="aws.config", fix="mend the path")
            for variable in ("config_file", "credentials_file"):
                inner.set_config_variable(variable, str(path))
        session = boto3.Session(botocore_session=inner, profile_name=self._profile)
        times = {"connect_timeout": _PATIENCE_S, "read_timeout": _PATIENCE_S}
        settings = Config(retries={"mode": "standard", "max_attempts": 4}, **times)
        return session.client(service, region_name=region, config=settings)


_OPENING = threading.Lock()
_ACCOUNTS: dict[tuple[str | None, ...], Account] = {}


def _boto3() -> Any:
    try:
        import boto3  # type: ignore[import-untyped]
    except ImportError:
        fix = "pip install 'hadar[aws]'"
        raise InputError("asking AWS needs boto3, which is not installed", fix=fix) from None
    return boto3


def code_of(error: Exception) -> str:
    """By what name AWS, or botocore, knows the error."""
    response = getattr(error, "response", None) or {}
    return str(response.get("Error", {}).get("Code") or type(error).__name__)


def _fix(code: str) -> str:
    """Codes of what is wrong with a request are many, and name the thing themselves."""
    if code not in _FIXES and code.startswith(("Invalid", "Missing")):
        return _FIXES["InvalidParameterValue"]
    return _FIXES.get(code, "see whether `aws sts get-caller-identity` works")


@contextmanager
def input_errors(field: str | None = None) -> Iterator[None]:
    """Before a run: whatever AWS says no to is the user's to mend."""
    _boto3()
    from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]

    try:
        yield
    except (BotoCoreError, ClientError) as error:
        message = f"AWS: {said(str(error))}"
        raise InputError(message, field=field, fix=_fix(code_of(error))) from error


@contextmanager
def link_errors() -> Iterator[None]:
    """During a run: what may be granted later is waited for, what never will be is given up."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except (BotoCoreError, ClientError) as error:
        code, told = code_of(error), f"AWS: {said(str(error))}"
        if code in _LOGGED_OUT:
            for account in list(_ACCOUNTS.values()):
                account.log_in()
            raise NotYetError(told, fix=_fix(code), kind="logged out") from error
        if code in _LATER:
            raise NotYetError(told) from error
        if code in _FIXES and isinstance(error, ClientError):
            raise NoMoreError(told, fix=_fix(code)) from error
        raise LinkLostError(told, fix=_fix(code)) from error
