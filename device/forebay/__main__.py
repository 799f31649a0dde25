"""``python -m forebay`` is the command ``forebay``."""

from forebay.toolkit.command import main

raise SystemExit(main())
