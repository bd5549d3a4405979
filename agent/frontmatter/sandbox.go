package frontmatter

import "time"

// A Mode is the lifetime of a sandbox.
type Mode string

// The modes.
const (
	ModeCompute Mode = "compute" // for one call
	ModeCode    Mode = "code"    // from call to call
)

// A Session tells which calls share a sandbox of ModeCode.
type Session string

// The sessions.
const (
	SessionWorkflow Session = "workflow" // all steps of a workflow
	SessionAgent    Session = "agent"    // the calls of one run of an agent
)

// A Sandbox is the value of the key sandbox, with defaults for missing keys.
type Sandbox struct {
	// Runtime is the argument of [Images.Resolve]; "" if the file names none. In
	// ModeCompute it is python, node, bash (also for linux and shell), or an image.
	Runtime      string
	Mode         Mode
	Session      Session
	Limits       Limits
	AllowNetwork bool
	PipPackages  []string // in pip's syntax, like "requests>=2"; none begins with "-"
	NPMPackages  []string // in npm's syntax, like "left-pad@1"; none begins with "-"
}

// Limits bound the agent's tools.
type Limits struct {
	Timeout     time.Duration // of one command
	MaxFileSize int64         // bytes
	MaxFiles    int           // number of files written with the tools
}

// DefaultLimits returns the limits of an agent whose file sets none.
func DefaultLimits() Limits {
	return Limits{Timeout: 300 * time.Second, MaxFileSize: 10 << 20, MaxFiles: 100}
}

// Upper bounds of the limits in a file; larger values are mistakes.
const (
	maxTimeout  = 24 * time.Hour
	maxFileSize = 1 << 30
	maxFiles    = 1_000_000
)

// normalizeRuntime sets the runtime to the mode's canonical name for it.
func (s *Sandbox) normalizeRuntime() {
	if s.Mode == ModeCompute && (s.Runtime == "linux" || s.Runtime == "shell") {
		s.Runtime = "bash"
	}
}

// Program returns the only runtime that programs in ModeCompute may use: python, node or
// bash; "" if the file names none, or an image.
func (s *Sandbox) Program() string {
	if s.Mode == ModeCompute && (s.Runtime == "python" || s.Runtime == "node" || s.Runtime == "bash") {
		return s.Runtime
	}
	return ""
}

// DefaultProgram returns the runtime of programs that name none; "" if they must.
func (s *Sandbox) DefaultProgram() string {
	if s.Mode == ModeCompute && s.Runtime == "" {
		return "python"
	}
	return s.Program()
}
