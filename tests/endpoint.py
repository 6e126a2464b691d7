"""The endpoint for health and metrics, as a supervisor or Prometheus asks it."""

import urllib.error
import urllib.request

ANSWER_SECONDS = 20.0  # the machine may be busy


def get(port: int | str, path: str) -> tuple[int, str]:
    """Status and text of a page of an application on this machine; 0 while the port is closed."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=ANSWER_SECONDS) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""
