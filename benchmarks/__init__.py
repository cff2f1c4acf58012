"""The figures that rtdebug has to reach, each beside public tools, measured in one run on one machine."""
