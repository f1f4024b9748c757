"""Options of JVMs that live for seconds. Two thirds of what such a one computes otherwise is Java's second compiler."""

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
