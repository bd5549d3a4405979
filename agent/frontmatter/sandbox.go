package frontmatter

import "time"

// A Mode says how long a sandbox lives.
type Mode string

// The modes.
const (
	ModeCompute Mode = "compute" // for one call
	ModeCode    Mode = "code"    // from call to call
)

// A Session says who shares a sandbox of ModeCode.
type Session string

// The sessions.
const (
	SessionWorkflow Session = "workflow" // all steps of a workflow
	SessionAgent    Session = "agent"    // the calls of one run of an agent
)

// A Sandbox is the value of the key sandbox. What the file does not say has its
// default.
type Sandbox struct {
	// Runtime is for [Images.Resolve]. In ModeCompute it is python, node, bash,
	// which linux and shell stand for, or an image.
	Runtime      string
	Mode         Mode
	Session      Session
	Limits       Limits
	AllowNetwork bool
	PipPackages  []string // as pip takes them, like "requests>=2"; none begins with "-"
	NPMPackages  []string // as npm takes them, like "left-pad@1"; none begins with "-"
}

// Limits are what tools may take and do.
type Limits struct {
	Timeout     time.Duration // of one command
	MaxFileSize int64         // bytes
	MaxFiles    int           // written with the tools
}

// DefaultLimits are those of an agent whose file names none.
func DefaultLimits() Limits {
	return Limits{Timeout: 300 * time.Second, MaxFileSize: 10 << 20, MaxFiles: 100}
}

// The most that a file may ask for: beyond it is a mistake.
const (
	maxTimeout  = 24 * time.Hour
	maxFileSize = 1 << 30
	maxFiles    = 1_000_000
)

// settle gives the runtime the one name that the mode has for it.
func (s *Sandbox) settle() {
	switch {
	case s.Runtime == "" && s.Mode == ModeCode:
		s.Runtime = "linux"
	case s.Runtime == "":
		s.Runtime = "python"
	case s.Mode == ModeCompute && (s.Runtime == "linux" || s.Runtime == "shell"):
		s.Runtime = "bash"
	}
}
