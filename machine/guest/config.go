package guest

import "github.com/seed46cd37a8/atoll"

// Socket is the address on which a Machine listens: in its network namespace and not in its file
// system, which an image may fill with anything, and which may be read-only.
const Socket = "@atoll-guest"

// ConfigVar is the environment variable with the Config, for a guest whose argument is this name:
// more people can see a program's arguments than its environment.
const ConfigVar = "ATOLL_GUEST_CONFIG"

// A Config describes the sandbox around a Machine.
type Config struct {
	ID      string   `json:"id"`
	Workdir string   `json:"workdir"`
	User    string   `json:"user,omitempty"` // of processes without a user
	Env     []string `json:"env,omitempty"`  // of every process, besides this program's environment
	Home    bool     `json:"home,omitempty"` // HOME in the environment applies to all users; else each user has their own
	Self    string   `json:"self"`           // the path of this program

	Cmd       []string    `json:"cmd,omitempty"` // the main process; the machine ends with it
	TTY       *atoll.Size `json:"tty,omitempty"`
	OpenStdin bool        `json:"open_stdin,omitempty"`

	Offline bool `json:"offline,omitempty"` // programs have no network, even if the guest has one

	Cache      string   `json:"cache,omitempty"`       // directory of the caches of many sandboxes; "" for none
	CachePaths []string `json:"cache_paths,omitempty"` // besides atoll.CacheDirs

	IdleStop atoll.Duration `json:"idle_stop,omitzero"` // the time without use after which the machine stops
	Silence  atoll.Duration `json:"silence,omitzero"`   // the time after which a silent host counts as dead; 0 if its connection ends with it
	Held     bool           `json:"held,omitempty"`     // output of the main process waits for its first reader, as of an AutoRemove sandbox

	Framed  bool   `json:"framed,omitempty"`  // output and Reports are Frames on stdout
	Lines   bool   `json:"lines,omitempty"`   // Frames are lines of base64, for a log that is text; see FromLines
	Outcome string `json:"outcome,omitempty"` // a file that gets the last Report, too, as JSON
}

// ReportPrefix begins a line of the guest itself, after a line end that is not the main process's
// either; a Report as JSON follows. The guest prints each on both outputs, because readers lose the
// order between them.
const ReportPrefix = "atoll-guest: "

// A Report says, before the main process starts, that the output from now on is of this run; and as
// the last line what the guest's exit code cannot say: why a Machine could not start, or how it
// ended.
type Report struct {
	Begins  bool        `json:"begins,omitempty"`
	Kind    atoll.Kind  `json:"kind,omitempty"` // "" if the machine started
	Message string      `json:"message,omitempty"`
	Main    *atoll.Exit `json:"main,omitempty"`   // of the main process: after a request to stop, and always in Frames
	Reason  string      `json:"reason,omitempty"` // of the machine's end
	Idle    bool        `json:"idle,omitempty"`   // the machine ended without use
}

// Threads is the number of threads that a Machine has from the beginning. A system call that blocks
// takes one, and on an overloaded computer any call may block.
const Threads = 48
