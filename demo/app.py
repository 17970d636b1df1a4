"""Start the demo in a Space, or in a clone: the app itself is `vanilla_transformer.app`."""

from vanilla_transformer.cli.demo import main


if __name__ == "__main__":
    main()
