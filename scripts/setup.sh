# shellcheck shell=sh
# Sourced by scripts/test and scripts/demo, after they have changed to the project's root.
# Makes .venv when it is missing, installs when what it would install changed, and puts .venv first on PATH.

find_python() {
    for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11; do
        if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return 0
        fi
    done
    echo "lstlm needs Python 3.11 or newer; install it, or set PYTHON to its path" >&2
    return 1
}

set_up() {
    if ! .venv/bin/python -c '' 2>/dev/null; then
        python=$(find_python)
        echo "creating .venv with $python" >&2
        "$python" -m venv .venv
    fi
    # The path belongs to the stamp: an environment that was moved or copied is installed again.
    stamp=$({ pwd; cat pyproject.toml constraints.txt lstlm/kernels/native/*; } | cksum)
    if [ "$(cat .venv/lstlm-stamp 2>/dev/null)" != "$stamp" ]; then
        echo "installing lstlm and what it needs into .venv (once; this downloads PyTorch)" >&2
        .venv/bin/python -m pip install --quiet -c constraints.txt -e '.[test,plot,demo,docs]'
        echo "$stamp" >.venv/lstlm-stamp
    fi
    PATH="$PWD/.venv/bin:$PATH"
    export PATH
}

set_up
