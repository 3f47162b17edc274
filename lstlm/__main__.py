"""``python -m lstlm`` (and ``torchrun -m lstlm``) is the same as ``lstlm``."""

from lstlm.cli import main

if __name__ == "__main__":
    main()
