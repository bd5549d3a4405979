package guest

import "github.com/seed46cd37a8/atoll"

// Socket is where a Machine listens: in its network namespace and not in its file
// system, where an image may have anything, and which may be read-only.
const Socket = "@atoll-guest"

// ConfigVar is the environment variable in which a guest finds its Config that is told its
// name instead: where what a program is started with can be seen by more people than its
// environment.
const ConfigVar = "ATOLL_GUEST_CONFIG"

// A Config says what the sandbox around a Machine is.
type Config struct {
	ID      string   `json:"id"`
	Workdir string   `json:"workdir"`
	User    string   `json:"user,omitempty"` // of processes that name none
	Env     []string `json:"env,omitempty"`  // of every process, besides that of this program
	Home    bool     `json:"home,omitempty"` // the HOME in it is meant for all; else each user has his own
	Self    string   `json:"self"`           // the path of this program

	Cmd       []string    `json:"cmd,omitempty"` // the main process; with it the machine ends
	TTY       *atoll.Size `json:"tty,omitempty"`
	OpenStdin bool        `json:"open_stdin,omitempty"`

	Offline bool `json:"offline,omitempty"` // programs have no network, whatever there is around the guest

	Cache      string   `json:"cache,omitempty"`       // directory of the caches of many sandboxes; "" for none
	CachePaths []string `json:"cache_paths,omitempty"` // besides atoll.CacheDirs

	IdleStop atoll.Duration `json:"idle_stop,omitzero"` // it stops when nobody has used it for so long
	Silence  atoll.Duration `json:"silence,omitzero"`   // after which a host counts as dead that does not answer; 0 where its connection ends with it
	Held     bool           `json:"held,omitempty"`     // what it prints waits for its first reader, as of an AutoRemove sandbox

	Framed  bool   `json:"framed,omitempty"`  // its output, and what the guest reports, is in Frames on stdout
	Lines   bool   `json:"lines,omitempty"`   // and these are lines of base64, for a log that is text; see FromLines
	Outcome string `json:"outcome,omitempty"` // a file that the last Report is in, too, as JSON
}

// ReportPrefix begins a line that a guest prints of its own, after an end of line
// that is not the main process's either; a Report as JSON follows. It prints each
// on both outputs, because their order is lost with those who read them.
const ReportPrefix = "atoll-guest: "

// A Report says, before the main process is started, that what comes from now on
// is of this run; and as the last line what the code that the guest exits with
// cannot say: why a Machine could not be started, or how it ended.
type Report struct {
	Begins  bool        `json:"begins,omitempty"`
	Kind    atoll.Kind  `json:"kind,omitempty"` // "" if it was started
	Message string      `json:"message,omitempty"`
	Main    *atoll.Exit `json:"main,omitempty"`   // of the main process: when it was asked to stop, and always in Frames
	Reason  string      `json:"reason,omitempty"` // of its end
	Idle    bool        `json:"idle,omitempty"`   // nobody used it
}

// Threads is how many a Machine has from the beginning. A system call that does not
// return at once takes one, and on a machine that has more to do than it can any call
// may be such a one.
const Threads = 48
