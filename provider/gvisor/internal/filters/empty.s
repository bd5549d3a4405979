// The compiler allows functions without a body, which linkname needs, in packages with a file like this one.
