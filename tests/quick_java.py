"""Options of JVMs that live for seconds. Two thirds of what such a one computes otherwise is Java's second compiler.

Without that one Java also keeps less room for compiled code, throws code away, and compiles it again: so it gets more.
"""

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=256m"
