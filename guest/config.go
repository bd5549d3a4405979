package guest

import "github.com/seed46cd37a8/atoll"

// A Config says what the sandbox around a Machine is.
type Config struct {
	ID      string   `json:"id"`
	Workdir string   `json:"workdir"`
	User    string   `json:"user,omitempty"` // of processes that name none
	Env     []string `json:"env,omitempty"`  // of every process
	Self    string   `json:"self"`           // the path of this program

	Cmd       []string    `json:"cmd,omitempty"` // the main process; with it the machine ends
	TTY       *atoll.Size `json:"tty,omitempty"`
	OpenStdin bool        `json:"open_stdin,omitempty"`

	IdleStop atoll.Duration `json:"idle_stop,omitzero"` // it stops when nobody has used it for so long
	Held     bool           `json:"held,omitempty"`     // what it prints waits for its first reader, as of an AutoRemove sandbox
}

// ReportPrefix begins the last line that a guest prints when the code that it
// exits with cannot say it all; a Report as JSON follows.
const ReportPrefix = "atoll-guest: "

// A Report says why a Machine could not be started, or how the main process
// ended of one that was asked to stop.
type Report struct {
	Kind    atoll.Kind  `json:"kind,omitempty"` // "" if it was started
	Message string      `json:"message,omitempty"`
	Main    *atoll.Exit `json:"main,omitempty"`
	Reason  string      `json:"reason,omitempty"` // of its end
	Idle    bool        `json:"idle,omitempty"`   // nobody used it
}
