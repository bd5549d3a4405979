// Package settings has the defaults of the settings of the tools of agents, for programs that do not link the tools.
package settings

// DefaultOutput is the default number of bytes of JSON that one call returns at most.
const DefaultOutput = 30_000

// DefaultBlocked returns the paths that the file tools don't touch by default.
func DefaultBlocked() []string { return []string{"/etc/passwd", "/etc/shadow", "/root"} }
