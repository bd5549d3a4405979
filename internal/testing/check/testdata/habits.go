package a

// age is how long the record of a sandbox, which is
// there for whoever asks, was kept.
func age() { _ = "who names none is told so" }

// killProcess ends the process that the user who owns it started.
func killProcess() {}
