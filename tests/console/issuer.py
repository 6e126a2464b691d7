"""An issuer of OpenID Connect on this machine: it signs in whoever comes, as the test says."""

import base64
import secrets
import time
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qs, urlencode

from joserfc import jwt
from joserfc.jwk import ECKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

CLIENT, SECRET = "lockkeeper", "secret-2718281828"


class TestIssuer:
    """`claims`: of the next ID token, in place of the usual ones. `asked`: the forms that the token endpoint got."""

    __test__ = False

    def __init__(self) -> None:
        self.url = ""
        self.key = ECKey.generate_key("P-256", {"kid": "1", "alg": "ES256", "use": "sig"})
        self.signed_by = self.key
        self.claims: dict[str, Any] = {}
        self.asked: list[dict[str, str]] = []
        self._codes: dict[str, dict[str, str]] = {}
        routes = [
            Route("/.well-known/openid-configuration", self._metadata),
            Route("/authorize", self._authorize),
            Route("/token", self._token, methods=["POST"]),
            Route("/keys", lambda _request: JSONResponse({"keys": [self.key.as_dict(private=False)]})),
        ]
        self.app = Starlette(routes=routes)

    def _metadata(self, _request: Request) -> Response:
        endpoints = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "keys"}
        return JSONResponse({"issuer": self.url, **{name: f"{self.url}/{path}" for name, path in endpoints.items()}})

    def _authorize(self, request: Request) -> Response:
        asked = dict(request.query_params)
        code = secrets.token_urlsafe(16)
        self._codes[code] = asked
        return RedirectResponse(f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}", 303)

    async def _token(self, request: Request) -> Response:
        form = {name: values[0] for name, values in parse_qs((await request.body()).decode()).items()}
        self.asked.append({**form, "authorization": request.headers.get("authorization", "")})
        begun = self._codes.pop(form["code"], None)
        digest = base64.urlsafe_b64encode(sha256(form["code_verifier"].encode()).digest()).rstrip(b"=").decode()
        if begun is None or begun["code_challenge"] != digest or begun["code_challenge_method"] != "S256":
            return JSONResponse({"error": "invalid_grant"}, 400)
        usual = {"iss": self.url, "aud": CLIENT, "sub": "dana", "exp": int(time.time()) + 60, "nonce": begun["nonce"]}
        claims = {name: value for name, value in {**usual, **self.claims}.items() if value is not None}
        return JSONResponse({"id_token": jwt.encode({"alg": "ES256", "kid": "1"}, claims, self.signed_by)})
