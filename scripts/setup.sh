# Sourced by the other scripts: makes .venv on first use and keeps it in step with pyproject.toml.
# Usage: . scripts/setup.sh [extra]     e.g. `. scripts/setup.sh dev`

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
extra=${1:-}
stamp="$root/.venv/.installed${extra:+-$extra}"

if [ ! -e "$stamp" ] || [ "$root/pyproject.toml" -nt "$stamp" ] || [ "$root/constraints.txt" -nt "$stamp" ]; then
    python=""
    for candidate in "${PYTHON:-python3}" python3.13 python3.12 python3.11 python3.10; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            python=$candidate
            break
        fi
    done
    if [ -z "$python" ]; then
        echo "hadar needs Python 3.10 or newer; set PYTHON=/path/to/python3" >&2
        exit 2
    fi
    echo "Setting up .venv (first use takes a minute or two) ..." >&2
    [ -x "$root/.venv/bin/python" ] || "$python" -m venv "$root/.venv" || {
        echo "Could not make .venv; on Debian and Ubuntu: apt-get install python3-venv" >&2
        exit 2
    }
    # Not compiled ahead: Python does that for the few modules that are ever imported.
    "$root/.venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile \
        --constraint "$root/constraints.txt" --editable "$root${extra:+[$extra]}" >&2 || {
        echo "Installation failed; the lines above say why. Try again once it is mended." >&2
        exit 2
    }
    touch "$stamp"
fi
