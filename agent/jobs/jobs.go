// Package jobs runs one program in a container of its own and removes the container
// afterwards. Agents in compute mode use it. A Backend supplies the container: a sandbox of
// a provider, or an engine that has no sandboxes.
//
// Function In does the work inside the container for every backend, so that all backends
// return the same results.
package jobs

import (
	"context"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// A Backend runs programs, any number at once.
type Backend interface {
	// Run runs a job in a container of its own, from the job's image, and removes it.
	// It blocks until the program has ended, its descendants have been killed, and the
	// container is gone. When ctx ends first, the program is killed and ctx's error
	// returned. A program that ran has a Result, whatever its exit.
	//
	// Kinds: ErrCommandNotFound (the image has no such program), ErrUnsupported (the
	// backend cannot fulfil the spec; nothing has run), ErrInvalid, ErrNotExist (no
	// such image), ErrDenied (by the registry), ErrUnavailable, ErrExhausted,
	// ErrConflict (the container ended while the program ran), ErrTimeout (of the
	// container, not of the program, which has a Result).
	Run(ctx context.Context, job *Job) (*Result, error)

	// Close releases the backend's own resources, not those of a provider that it was
	// given. Jobs must have ended before.
	Close() error
}

// A Job is a program and its environment. Backends don't change it.
type Job struct {
	// Spec describes the container: its image, network, resources, variables. The
	// program starts in its work directory, which contains Files. Its TTL has to exceed
	// the duration of the job; it removes containers that nobody else removes.
	Spec  atoll.Spec `json:"spec"`
	Files []File     `json:"files,omitempty"`

	// Install, unless empty, runs first. If it fails, the program doesn't run.
	Install []string `json:"install,omitempty"`

	Args []string `json:"args"`
	// Else replaces Args[0] if that doesn't exist; "" means no replacement.
	Else string   `json:"else,omitempty"`
	Env  []string `json:"env,omitempty"` // added to the container's

	Timeout atoll.Duration `json:"timeout"` // of the program, and of Install

	// MaxOutput is the most bytes kept of each output stream: of its beginning and of its
	// end. At most MaxFiles of the
	// program's files are listed. A file's content is included if it is not larger than
	// MaxFileSize, up to a total of MaxContent.
	MaxOutput   int64 `json:"max_output"`
	MaxFiles    int   `json:"max_files"`
	MaxFileSize int64 `json:"max_file_size"`
	MaxContent  int64 `json:"max_content"`

	// Report, if not nil, is called now and then from one goroutine while a command
	// runs, with the last line that it has printed. A backend that only sees output at
	// the end never calls it.
	Report func(took time.Duration, line string) `json:"-"`
}

// A File is an input file of the program.
type File struct {
	Name string `json:"name"` // relative to the work directory
	Data []byte `json:"data"`
}

// A Result is the outcome of a program.
type Result struct {
	Ran
	// NotInstalled tells that Install failed: this is its result, and the program
	// didn't run.
	NotInstalled bool `json:"not_installed,omitempty"`

	// Artifacts are the files in the work directory that the program has made or
	// changed, sorted; caches of runtimes are omitted.
	Artifacts []Artifact `json:"artifacts,omitempty"`
	// More tells that there are more than MaxFiles of them.
	More bool `json:"more,omitempty"`
	// Unread tells why Artifacts is incomplete, "" if it isn't.
	Unread string `json:"unread,omitempty"`
}

// An Artifact is a file that a program has made or changed.
type Artifact struct {
	Path string `json:"path"` // relative to the work directory
	Size int64  `json:"size"`
	Read bool   `json:"read,omitempty"` // Data is its content; otherwise it is too large
	Data []byte `json:"data,omitempty"`
}
